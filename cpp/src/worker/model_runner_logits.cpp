// The part of a step that is about logits processors, host code for the rows of the requests that use it; and
// what it says where no token can be drawn.
#include <cstring>

#include "device/buffer.h"
#include "quire/kernels/draw_math.h"
#include "util/check.h"
#include "worker/model_runner.h"

namespace quire {

void ModelRunner::set_logits_processors(std::unique_ptr<LogitsProcessors> processors) {
  logits_processors_ = std::move(processors);
}

// On the host: to memory of their own, which pages that are never touched cost nothing of.
void ModelRunner::move_logits() {
  const auto buffer = std::make_shared<Buffer>(static_cast<size_t>(all_logits_.numel()) * sizeof(float));
  all_logits_.data = buffer->data();
  logits_memory_ = {buffer, buffer->data()};
}

// On a device waits for the forward pass, and so for all tokens before this step's.
void ModelRunner::change_logits(TensorView& logits) {
  if (num_logits_processor_reqs_ == 0) return;
  processor_rows_.clear();
  changed_rows_.clear();
  auto sampling = sampling_rows_.begin();
  for (const int32_t row : sampled_rows_) {
    const CachedRequestState& request = batch_->request(row);
    const auto end = sampling + 1 + request.num_drafts;
    const uint32_t uses =
        logits_processors_->taking(request.logits_processors, request.sampling.temperature == 0);
    if (uses == 0) {
      sampling = end;
      continue;
    }
    buffers_->inputs().bring_tokens(launch_, *batch_, request);
    const int32_t* output = batch_->token_ids(request) + request.num_prompt_tokens;
    for (; sampling != end; ++sampling) {
      LogitsProcessors::Row& changed = processor_rows_.emplace_back();
      changed.request_id = request.request_id;
      changed.uses = uses;
      changed.result_index = sampling->result_index;
      changed.row.output_token_ids = {output,
                                      static_cast<size_t>(sampling->num_tokens - request.num_prompt_tokens)};
      changed_rows_.push_back(sampling - sampling_rows_.begin());
    }
  }
  if (processor_rows_.empty()) return;
  const auto vocab = static_cast<size_t>(model_.vocab_size());
  const size_t row_bytes = vocab * sizeof(float);
  const DeviceRuntime* runtime = platform_.runtime();
  std::byte* host = nullptr;
  if (runtime != nullptr) {
    if (processor_rows_.size() > num_pinned_logits_) {
      logits_memory_.reset();
      num_pinned_logits_ = 0;
      const auto pinned =
          std::make_shared<PinnedMemory>(make_pinned(*runtime, processor_rows_.size() * row_bytes));
      logits_memory_ = {pinned, pinned->get()};
      num_pinned_logits_ = processor_rows_.size();
    }
    host = static_cast<std::byte*>(logits_memory_.get());
    for (size_t i = 0; i < changed_rows_.size(); ++i) {
      check_device(
          *runtime,
          runtime->copy(host + i * row_bytes, logits.at(changed_rows_[i]), row_bytes, launch_.stream),
          "bringing logits");
    }
    check_device(*runtime, runtime->synchronize_stream(launch_.stream), "bringing logits");
  }
  for (size_t i = 0; i < changed_rows_.size(); ++i) {
    auto* row =
        host != nullptr ? host + i * row_bytes : reinterpret_cast<std::byte*>(logits.at(changed_rows_[i]));
    processor_rows_[i].row.logits = {reinterpret_cast<float*>(row), vocab};
    processor_rows_[i].row.memory = &logits_memory_;
  }
  logits_processors_->apply(processor_rows_, record(ring_index_).processor_errors);
  for (size_t i = 0; runtime != nullptr && i < changed_rows_.size(); ++i) {
    check_device(*runtime,
                 runtime->copy(logits.at(changed_rows_[i]), host + i * row_bytes, row_bytes, launch_.stream),
                 "sending logits");
  }
  if (logits_memory_.use_count() == 1) return;
  // A processor keeps it, and may go on writing there.
  if (runtime != nullptr) {
    check_device(*runtime, runtime->synchronize_stream(launch_.stream), "sending logits");
    num_pinned_logits_ = 0;
    logits_memory_.reset();
    return;
  }
  const std::shared_ptr<void> kept = logits_memory_;
  move_logits();
  const void* before = logits.data;
  logits.data = logits_.data = all_logits_.data;
  std::memcpy(logits.data, before, static_cast<size_t>(logits.shape[0]) * row_bytes);
}

std::string ModelRunner::why_no_token(int32_t token, bool is_processed) {
  if (token == draw_math::kNoTokenLeft) {
    return "allowed_token_ids, bad_words, structured_outputs, min_tokens and logits processors together "
           "leave no token to choose";
  }
  return str("the model's logits hold a NaN: its weights do, or its activations leave the range of dtype",
             is_processed ? ", or a logits processor has written one" : "");
}

}  // namespace quire
