// Counts of the tokens that each expert was chosen by, where the kernels count them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "device/device_arena.h"
#include "device/runtime_handles.h"
#include "quire/expert_load.h"
#include "worker/platform.h"

namespace quire {

class ExpertCounters {
 public:
  // `layers`: BuildContext::expert_loads.
  explicit ExpertCounters(std::vector<ExpertLoad> layers);

  // What `place` takes of its arena.
  size_t bytes() const { return DeviceArena::rounded(num_counts_ * sizeof(uint64_t)); }
  // Once. They are zero then. `arena` and `platform` live longer.
  void place(DeviceArena& arena, const Platform& platform);
  // Zero again, behind what is enqueued.
  void clear();
  // ForwardContext::expert_counts; null when there are none.
  uint64_t* data() const { return counts_; }

  // As they are now. On any thread that has selected the platform, one at a time, while steps run: waits for
  // none of them, and may see a part of one.
  std::vector<ExpertLoad> read() const;

 private:
  std::vector<ExpertLoad> layers_;
  size_t num_counts_ = 0;
  uint64_t* counts_ = nullptr;
  const Platform* platform_ = nullptr;
  DeviceStream stream_;  // a device's, of its own
};

}  // namespace quire
