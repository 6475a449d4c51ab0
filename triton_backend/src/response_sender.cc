#include "response_sender.h"

#include <cstring>

namespace quire::triton {
namespace {

Response new_response(TRITONBACKEND_ResponseFactory* factory) {
  TRITONBACKEND_Response* response = nullptr;
  check(server_api().TRITONBACKEND_ResponseNewFromFactory(&response, factory));
  return Response(response);
}

void add_output(TRITONBACKEND_Response* response, const OutputTensor& tensor) {
  const ServerApi& api = server_api();
  TRITONBACKEND_Output* output = nullptr;
  check(api.TRITONBACKEND_ResponseOutput(response, &output, tensor.name, tensor.datatype, tensor.shape.data(),
                                         static_cast<uint32_t>(tensor.shape.size())));
  void* buffer = nullptr;
  TRITONSERVER_MemoryType memory_type = TRITONSERVER_MEMORY_CPU;
  int64_t memory_type_id = 0;
  check(api.TRITONBACKEND_OutputBuffer(output, &buffer, tensor.bytes.size(), &memory_type, &memory_type_id));
  if (memory_type == TRITONSERVER_MEMORY_GPU) {
    throw ServerError(TRITONSERVER_ERROR_UNSUPPORTED,
                      std::string("output '") + tensor.name + "' cannot be written to device memory");
  }
  if (!tensor.bytes.empty()) std::memcpy(buffer, tensor.bytes.data(), tensor.bytes.size());
}

}  // namespace

void DeleteResponse::operator()(TRITONBACKEND_Response* response) const {
  log_failure(server_api().TRITONBACKEND_ResponseDelete(response), "deleting a response");
}

ResponseSender::ResponseSender(TRITONBACKEND_Request* request, ResponsePacer& pacer) : pacer_(pacer) {
  check(server_api().TRITONBACKEND_ResponseFactoryNew(&factory_, request));
}

ResponseSender::~ResponseSender() { close(); }

void ResponseSender::close() {
  const std::lock_guard lock(mutex_);
  if (!factory_) return;
  log_failure(server_api().TRITONBACKEND_ResponseFactoryDelete(factory_), "deleting a response factory");
  factory_ = nullptr;
}

bool ResponseSender::is_cancelled() const {
  const std::lock_guard lock(mutex_);
  bool cancelled = false;
  if (factory_) {
    log_failure(server_api().TRITONBACKEND_ResponseFactoryIsCancelled(factory_, &cancelled),
                "asking for cancellation");
  }
  return cancelled;
}

Response ResponseSender::make(const std::vector<OutputTensor>& tensors) const {
  Response response = new_response(factory_);
  // A response whose buffer was refused must never be sent as a success: the server would not survive it.
  for (const OutputTensor& tensor : tensors) add_output(response.get(), tensor);
  return response;
}

// The first response of an HTTP stream is two messages, because its head goes before it, and so is the last,
// with the end of the chunks behind it.
void ResponseSender::pace(Place place) {
  pacer_.before_send(has_sent_ && place == Place::kMore ? 1 : 2);
  has_sent_ = true;
}

void ResponseSender::send(Response response, Place place) {
  pace(place);
  const uint32_t flags = place == Place::kLast ? TRITONSERVER_RESPONSE_COMPLETE_FINAL : 0;
  log_failure(server_api().TRITONBACKEND_ResponseSend(response.release(), flags, nullptr),
              "sending a response");
}

void ResponseSender::send_error(TRITONSERVER_Error* error) {
  pace(Place::kLast);
  try {
    Response response = new_response(factory_);
    log_failure(server_api().TRITONBACKEND_ResponseSend(response.release(),
                                                        TRITONSERVER_RESPONSE_COMPLETE_FINAL, error),
                "sending an error");
  } catch (const ServerError& failure) {
    log(TRITONSERVER_LOG_ERROR, std::string("no response could be made: ") + failure.what());
    log_failure(
        server_api().TRITONBACKEND_ResponseFactorySendFlags(factory_, TRITONSERVER_RESPONSE_COMPLETE_FINAL),
        "sending the final flag");
  }
  server_api().TRITONSERVER_ErrorDelete(error);
}

}  // namespace quire::triton
