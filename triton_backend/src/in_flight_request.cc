#include "in_flight_request.h"

#include <chrono>

#include "execution_times.h"

namespace quire::triton {
namespace {

// The server's clock, and the engine's.
uint64_t now_ns() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                   std::chrono::steady_clock::now().time_since_epoch())
                                   .count());
}

bool is_clients_doing(TRITONSERVER_Error_Code code) {
  return code == TRITONSERVER_ERROR_INVALID_ARG || code == TRITONSERVER_ERROR_NOT_FOUND ||
         code == TRITONSERVER_ERROR_CANCELLED;
}

}  // namespace

InFlightRequest::InFlightRequest(std::shared_ptr<LiveInstance> instance, TRITONBACKEND_Request* request,
                                 ResponsePacer& pacer)
    : instance_(std::move(instance)), request_(request), sender_(request, pacer), received_ns_(now_ns()) {}

InFlightRequest::~InFlightRequest() {
  if (request_) end_with_error(new_error(TRITONSERVER_ERROR_UNAVAILABLE, "the model has been unloaded"));
}

void InFlightRequest::begin(const AdaptedRequest& adapted, std::string prompt,
                            std::shared_ptr<const Tokenizer> tokenizer, ChatAnswerOptions chat) {
  options_ = adapted.response;
  timeout_us_ = adapted.timeout_us;
  queue_timeout_ms_ = adapted.request.queue_timeout_ms;
  request_id = adapted.request_id;
  builder_ = std::make_unique<ResponseTensors>(options_, adapted.request.sampling_params.n, std::move(prompt),
                                               std::move(tokenizer), std::move(chat));
}

void InFlightRequest::submitted() { submitted_ns_ = now_ns(); }

bool InFlightRequest::has_news(const RequestOutput& output) const {
  if (output.finished || options_.output_ids || options_.num_output_tokens || options_.logprobs ||
      options_.cumulative_logprob) {
    return true;
  }
  // A character that is not complete yet, or text that may become a stop string.
  return std::any_of(output.outputs.begin(), output.outputs.end(), [](const CompletionOutput& completion) {
    return !completion.text.empty() || completion.finished();
  });
}

bool InFlightRequest::deliver(const RequestOutput& output) {
  if (!request_) return true;  // it ended before the engine heard of it
  try {
    return deliver_or_throw(output);
  } catch (...) {
    end_with_error(current_exception_as_error());
    return true;
  }
}

bool InFlightRequest::deliver_or_throw(const RequestOutput& output) {
  const Ending why = ending;
  if (!output.finished) {
    if (why != Ending::kNone || !has_news(output)) return false;
    if (!builder_->build(output, tensors_)) return false;
    sender_.send(sender_.make(tensors_), ResponseSender::Place::kMore);
    return false;
  }
  for (const CompletionOutput& completion : output.outputs) {
    if (completion.finish_reason == FinishReason::kError) {
      end_with_error(new_error(TRITONSERVER_ERROR_INTERNAL, completion.error));
      return true;
    }
    if (completion.finish_reason != FinishReason::kAbort) continue;
    if (why == Ending::kCancelled) {
      end_cancelled();
      return true;
    }
    if (why == Ending::kServerExits) {
      end_with_error(new_error(TRITONSERVER_ERROR_UNAVAILABLE, kServerExits));
      return true;
    }
    if (queue_timeout_ms_ > 0 && output.metrics.first_scheduled_time == 0.0) {
      end_with_error(new_error(TRITONSERVER_ERROR_UNAVAILABLE,
                               "the request waited longer than default_timeout_microseconds of its model (" +
                                   std::to_string(queue_timeout_ms_) + " ms); try again later"));
      return true;
    }
    if (timeout_us_ > 0) {
      end_with_error(new_error(
          TRITONSERVER_ERROR_UNAVAILABLE,
          "the request was not finished within its timeout of " + std::to_string(timeout_us_) + " us"));
      return true;
    }
  }
  builder_->build(output, tensors_);
  end_ok(output.metrics, tensors_);
  return true;
}

void InFlightRequest::end_with(const std::vector<OutputTensor>& tensors) { end_ok({}, tensors); }

// The statistics come before the last word, so that whoever has heard it can read them.
void InFlightRequest::end_ok(const RequestMetrics& metrics, const std::vector<OutputTensor>& last) {
  Response response = sender_.make(last);
  report(true, metrics);
  sender_.send(std::move(response), ResponseSender::Place::kLast);
  release();
}

// The server counts each failure that is reported as the backend's (reason "BACKEND"), and has no other word
// for us: what the client has brought about itself is not reported.
void InFlightRequest::end_with_error(TRITONSERVER_Error* error) {
  if (!is_clients_doing(server_api().TRITONSERVER_ErrorCode(error))) report(false, {});
  sender_.send_error(error);
  release();
}

void InFlightRequest::end_cancelled() {
  end_with_error(new_error(TRITONSERVER_ERROR_CANCELLED, "the request was cancelled"));
}

void InFlightRequest::report(bool success, const RequestMetrics& metrics) {
  const uint64_t submitted = submitted_ns_;  // before the clock: Execute's thread may be writing it
  const uint64_t now = now_ns();
  const ExecutionTimes times = execution_times(received_ns_, submitted, now, metrics);
  const ServerApi& api = server_api();
  instance_->use([&](TRITONBACKEND_ModelInstance* instance) {
    log_failure(api.TRITONBACKEND_ModelInstanceReportStatistics(instance, request_, success, times.exec_start,
                                                                times.compute_start, times.compute_end, now),
                "reporting statistics");
    if (!success) return;
    log_failure(api.TRITONBACKEND_ModelInstanceReportBatchStatistics(
                    instance, 1, times.exec_start, times.compute_start, times.compute_end, now),
                "reporting statistics");
  });
}

void InFlightRequest::release() {
  sender_.close();
  log_failure(server_api().TRITONBACKEND_RequestRelease(request_, TRITONSERVER_REQUEST_RELEASE_ALL),
              "releasing a request");
  request_ = nullptr;
}

}  // namespace quire::triton
