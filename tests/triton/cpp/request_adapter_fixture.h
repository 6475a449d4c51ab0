// Requests as plain data, and what becomes of them: no server.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "host/host.h"
#include "request_adapter.h"
#include "tensors.h"

namespace quire::triton::host {

class RequestAdapterFixture : public testing::Test {
 protected:
  static AdaptedRequest adapt(const ClientRequest& request, bool decoupled = true,
                              uint64_t queue_timeout_us = 0) {
    IncomingRequest incoming;
    incoming.id = request.id;
    for (const Input& input : request.inputs) {
      incoming.inputs.push_back({input.name, input.datatype, input.shape, input.buffers.at(0)});
    }
    incoming.parameters = request.parameters;
    incoming.outputs = request.outputs;
    incoming.timeout_us = request.timeout_us;
    ModelSettings model;
    model.decoupled = decoupled;
    model.queue_timeout_us = queue_timeout_us;
    model.num_outputs = output_specs().size();
    return adapt_request(incoming, model);
  }

  static std::string error(const ClientRequest& request, bool decoupled = true) {
    try {
      adapt(request, decoupled);
      return "";
    } catch (const InvalidArgument& complaint) {
      return complaint.what();
    }
  }

  static ClientRequest with(ClientRequest request, Input input) {
    request.inputs.push_back(std::move(input));
    return request;
  }
  static ClientRequest with(ClientRequest request, RequestParameter parameter) {
    request.parameters.push_back(std::move(parameter));
    return request;
  }
  static ClientRequest with_outputs(ClientRequest request, std::vector<std::string> outputs) {
    request.outputs = std::move(outputs);
    return request;
  }

  static bool mentions(const std::string& text, const std::string& needle) {
    return text.find(needle) != std::string::npos;
  }
};

}  // namespace quire::triton::host
