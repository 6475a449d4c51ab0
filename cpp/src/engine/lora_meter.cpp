#include "engine/lora_meter.h"

#include <set>
#include <utility>

#include "util/check.h"

namespace quire {

void LoraMeter::add(LoraId id, const std::string& name, int32_t num_reqs) {
  Adapter& adapter = adapters_[id];
  adapter.name = name;
  adapter.num_reqs += num_reqs;
  note(adapter);
}

void LoraMeter::remove(LoraId id, int32_t num_reqs) {
  const auto found = adapters_.find(id);
  QUIRE_CHECK(found != adapters_.end() && found->second.num_reqs >= num_reqs, "no request has adapter ", id);
  found->second.num_reqs -= num_reqs;
  note(found->second);
  if (found->second.num_reqs > 0) return;
  may_have_changed_ = true;
  adapters_.erase(found);
}

void LoraMeter::set_running(std::span<const RunningLora> running) {
  if (adapters_.empty()) return;  // what runs still was aborted
  for (auto& [id, adapter] : adapters_) adapter.num_running = 0;
  for (const RunningLora& lora : running) {
    const auto found = adapters_.find(lora.lora_id);
    if (found != adapters_.end()) found->second.num_running = lora.num_reqs;
  }
  for (const auto& [id, adapter] : adapters_) note(adapter);
}

std::optional<LoraRequestsInfo> LoraMeter::take_change() {
  if (!std::exchange(may_have_changed_, false)) return std::nullopt;
  std::set<std::string> waiting, running;
  for (auto& [id, adapter] : adapters_) {
    adapter.ran = adapter.runs();
    adapter.waited = adapter.waits();
    if (adapter.ran) running.insert(adapter.name);
    if (adapter.waited) waiting.insert(adapter.name);
  }
  LoraRequestsInfo now{info_.max_lora, {waiting.begin(), waiting.end()}, {running.begin(), running.end()}};
  if (now == info_) return std::nullopt;
  info_ = now;
  return now;
}

}  // namespace quire
