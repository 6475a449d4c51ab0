// Which adapters unfinished requests have, and which of them run.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "messages/engine_core_messages.h"
#include "quire/metrics.h"

namespace quire {

// On the client's side of the engine core, which says what runs; what does not run waits, here or there. Not
// thread-safe. Nothing is allocated while nobody has an adapter.
class LoraMeter {
 public:
  // 0: there are none.
  explicit LoraMeter(int32_t max_loras) { info_.max_lora = max_loras; }

  // Requests came that have an adapter, or ended. Two adapters may have had one name.
  void add(LoraId id, const std::string& name, int32_t num_reqs);
  void remove(LoraId id, int32_t num_reqs);
  void set_running(std::span<const RunningLora> running);

  // What it is now; nothing when it is what was taken last, or at first that there are no requests.
  std::optional<LoraRequestsInfo> take_change();

 private:
  struct Adapter {
    bool runs() const { return num_running > 0; }
    bool waits() const { return num_running < num_reqs; }
    std::string name;
    int32_t num_reqs = 0, num_running = 0;
    bool ran = false, waited = false;  // as last taken
  };
  // After a change of it: whether it is told of otherwise than before.
  void note(const Adapter& adapter) {
    may_have_changed_ |= adapter.runs() != adapter.ran || adapter.waits() != adapter.waited;
  }
  std::unordered_map<LoraId, Adapter> adapters_;
  bool may_have_changed_ = false;
  LoraRequestsInfo info_;  // as last taken
};

}  // namespace quire
