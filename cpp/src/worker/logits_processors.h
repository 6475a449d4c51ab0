// The logits processors of a worker, and which requests are in the batch of each.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "messages/engine_core_messages.h"
#include "quire/logits_processor.h"

namespace quire {

// Not thread-safe; one per worker.
class LogitsProcessors {
 public:
  // At most 32.
  LogitsProcessors(const std::vector<NamedLogitsProcessor>& factories, const LogitsProcessorConfig& config);

  // A request is new. Which processors use it, a bit each. `params` and the prompt stay until it is removed.
  uint32_t add(RequestId id, const SamplingParams& params, std::span<const int32_t> prompt_token_ids);
  void remove(RequestId id, uint32_t uses);
  // Those of `uses` that take part where a token is drawn, or the likeliest one is taken.
  uint32_t taking(uint32_t uses, bool is_greedy) const {
    return is_greedy ? uses & ~argmax_invariant_ : uses;
  }

  // A row of logits on the host.
  struct Row {
    RequestId request_id = 0;
    uint32_t uses = 0;  // those that take part
    uint32_t result_index = 0;
    LogitsRow row;  // but for its place in a batch
  };
  // Those that use them. What threw is appended to `errors` for each of its rows, by result_index.
  void apply(std::span<const Row> rows, std::vector<std::pair<uint32_t, std::string>>& errors);

 private:
  struct Batch {
    std::string name;
    LogitsProcessorFactory factory;
    std::unique_ptr<LogitsProcessor> processor;
    std::unordered_map<RequestId, int32_t> rows;
    std::vector<RequestId> ids;  // by row
    // Since the last update.
    std::vector<int32_t> removed;
    std::vector<std::pair<RequestId, AddedRequest>> added;
  };
  static void update(Batch& batch);

  std::vector<Batch> batches_;
  uint32_t argmax_invariant_ = 0;  // a bit each
  std::vector<LogitsRow> rows_;    // scratch
};

}  // namespace quire
