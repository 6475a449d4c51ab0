#include <utility>
#include <vector>

#include "worker/lora_memory.h"

namespace quire {
namespace {

class HostLoraMemory final : public LoraMemory {
 public:
  explicit HostLoraMemory(const LoraTargets& targets)
      : num_targets_(targets.all().size()),
        weights_(static_cast<size_t>(targets.max_loras())),
        table_(num_targets_ * weights_.size()) {}

  void bring(int32_t slot, std::shared_ptr<const LoraWeights> weights) override {
    const auto index = static_cast<size_t>(slot);
    weights_[index] = std::move(weights);
    for (size_t target = 0; target < num_targets_; ++target)
      table_[index * num_targets_ + target] = weights_[index]->at(target);
  }
  void begin_step(std::span<const LoraSegment>) override {}
  void end_step(std::span<const LoraSegment>) override {}
  const LoraSlot* table() const override { return table_.data(); }

 private:
  size_t num_targets_;
  std::vector<std::shared_ptr<const LoraWeights>> weights_;  // by slot
  std::vector<LoraSlot> table_;
};

}  // namespace

std::unique_ptr<LoraMemory> make_host_lora_memory(const LoraTargets& targets) {
  return std::make_unique<HostLoraMemory>(targets);
}

}  // namespace quire
