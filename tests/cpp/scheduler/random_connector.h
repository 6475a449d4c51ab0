// The KV connector of a SchedulerChecker.
#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/scheduler_checker.h"

namespace quire {

// Answers at random, and remembers what it was told.
struct SchedulerChecker::Connector : KVConnectorScheduler {
  explicit Connector(SchedulerChecker& checker) : checker(checker) {}
  std::optional<KVConnectorMatch> get_num_new_matched_tokens(const KVConnectorRequest& request,
                                                             int32_t num_computed) override {
    const int32_t block_size = checker.scheduler_->kv_cache_manager().block_size(0);
    // An answer that may be asked for again is the same until something came of it.
    const auto [answer, is_new] = answers.try_emplace(request.request_id);
    if (is_new) {
      if (!checker.draining_ && checker.choose_(8) == 0) {
        answers.erase(answer);
        return std::nullopt;
      }
      answer->second.num_tokens =
          checker.draining_ ? 0 : static_cast<int32_t>(checker.choose_(6)) * block_size;
      answer->second.load_async = checker.choose_(2) == 0;
    }
    hits[request.request_id] = num_computed;
    const int32_t num_tokens = std::clamp(answer->second.num_tokens - num_computed, 0,
                                          static_cast<int32_t>(request.token_ids.size()) - num_computed);
    return KVConnectorMatch{num_tokens, answer->second.load_async};
  }
  void update_state_after_alloc(const KVConnectorRequest& request, KVConnectorBlocks blocks,
                                int32_t num_external) override {
    const auto block_ids = blocks[0];
    const KVConnectorMatch answer = answers[request.request_id];
    answers.erase(request.request_id);
    if (num_external == 0) return;
    const int32_t block_size = checker.scheduler_->kv_cache_manager().block_size(0);
    const auto first = static_cast<size_t>(hits[request.request_id] / block_size);
    const auto end =
        static_cast<size_t>((hits[request.request_id] + num_external + block_size - 1) / block_size);
    require(end <= block_ids.size(), "no blocks to load into");
    std::vector<BlockId> ids(block_ids.begin() + static_cast<std::ptrdiff_t>(first),
                             block_ids.begin() + static_cast<std::ptrdiff_t>(end));
    (answer.load_async ? loading : loaded_now)[request.request_id] = std::move(ids);
  }
  std::string build_connector_meta(uint64_t, std::span<const KVConnectorScheduled>) override {
    return loading.empty() && sending.empty() ? "" : "go on";
  }
  bool request_finished(const KVConnectorRequest& request, KVConnectorBlocks) override {
    answers.erase(request.request_id);
    if (checker.choose_(3) != 0) return false;
    sending.insert(request.request_id);
    return true;
  }
  SchedulerChecker& checker;
  std::map<RequestId, KVConnectorMatch> answers;
  std::map<RequestId, int32_t> hits;
  std::map<RequestId, std::vector<BlockId>> loading, loaded_now;
  std::set<RequestId> sending;
};

}  // namespace quire
