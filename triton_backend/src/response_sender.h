// The way back for one request.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "response_pacer.h"
#include "server_api.h"
#include "tensors.h"

namespace quire::triton {

struct DeleteResponse {
  void operator()(TRITONBACKEND_Response* response) const;
};
using Response = std::unique_ptr<TRITONBACKEND_Response, DeleteResponse>;

// Exactly one call ends the request: send with kLast, or send_error; then close. These come from one thread
// at a time, is_cancelled from any.
class ResponseSender {
 public:
  enum class Place : uint8_t { kMore, kLast };

  // The request must outlive this call, the pacer the sender. Throws ServerError.
  ResponseSender(TRITONBACKEND_Request* request, ResponsePacer& pacer);
  ~ResponseSender();
  ResponseSender(const ResponseSender&) = delete;
  ResponseSender& operator=(const ResponseSender&) = delete;

  // The client has gone, or has cancelled, as far as the server knows. False when closed.
  bool is_cancelled() const;
  // Throws ServerError when the response cannot be made (the client's shared memory is too small, say); an
  // error must be sent then. One response at a time: the next is made when this one has been sent, or
  // deleted.
  Response make(const std::vector<OutputTensor>& tensors) const;
  void send(Response response, Place place);
  // Takes the error. When no response can be made for it, the final flag goes alone.
  void send_error(TRITONSERVER_Error* error);
  // Gives the server back what it counts as a request in flight.
  void close();

 private:
  void pace(Place place);

  ResponsePacer& pacer_;
  bool has_sent_ = false;
  mutable std::mutex mutex_;  // between is_cancelled and close
  TRITONBACKEND_ResponseFactory* factory_ = nullptr;
};

}  // namespace quire::triton
