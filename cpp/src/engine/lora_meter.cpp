#include "engine/lora_meter.h"

#include <set>
#include <utility>

#include "util/check.h"

namespace quire {

void LoraMeter::add(LoraId id, const std::string& name, int32_t num_reqs) {
  Adapter& adapter = adapters_[id];
  adapter.name = name;
  adapter.num_reqs += num_reqs;
  may_have_changed_ = true;
}

void LoraMeter::remove(LoraId id, int32_t num_reqs) {
  const auto found = adapters_.find(id);
  QUIRE_CHECK(found != adapters_.end() && found->second.num_reqs >= num_reqs, "no request has adapter ", id);
  found->second.num_reqs -= num_reqs;
  if (found->second.num_reqs == 0) adapters_.erase(found);
  may_have_changed_ = true;
}

void LoraMeter::set_running(std::span<const RunningLora> running) {
  if (adapters_.empty()) return;  // what runs still was aborted
  for (auto& [id, adapter] : adapters_) {
    int32_t num_running = 0;
    for (const RunningLora& lora : running)
      if (lora.lora_id == id) num_running = lora.num_reqs;
    may_have_changed_ |= num_running != adapter.num_running;
    adapter.num_running = num_running;
  }
}

std::optional<LoraRequestsInfo> LoraMeter::take_change() {
  if (!std::exchange(may_have_changed_, false)) return std::nullopt;
  std::set<std::string> waiting, running;
  for (const auto& [id, adapter] : adapters_) {
    if (adapter.num_running > 0) running.insert(adapter.name);
    if (adapter.num_running < adapter.num_reqs) waiting.insert(adapter.name);
  }
  LoraRequestsInfo now{info_.max_lora, {waiting.begin(), waiting.end()}, {running.begin(), running.end()}};
  if (now == info_) return std::nullopt;
  info_ = now;
  return now;
}

}  // namespace quire
