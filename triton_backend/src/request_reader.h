// A request of the server's as plain data.
#pragma once

#include <deque>
#include <string>

#include "server_api.h"
#include "tensors.h"

namespace quire::triton {

struct ReadRequest {
  IncomingRequest incoming;        // borrows from the server's request, which must not be released before
  std::deque<std::string> joined;  // inputs that came in several buffers
};

// Throws ServerError, or InvalidArgument for an input in device memory.
ReadRequest read_request(TRITONBACKEND_Request* request);

}  // namespace quire::triton
