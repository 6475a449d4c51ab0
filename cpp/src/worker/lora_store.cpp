#include "worker/lora_store.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "util/check.h"
#include "weights/convert.h"

namespace quire {
namespace {

constexpr size_t kAlignment = 64;

// Checkpoints and adapters agree in a name but for what stands before it: some checkpoints were saved without
// the head, and call a layer "h.0" that is "transformer.h.0" in the whole.
bool is_same_module(std::string_view a, std::string_view b) {
  if (a.size() < b.size()) std::swap(a, b);
  return a.ends_with(b) && (a.size() == b.size() || a[a.size() - b.size() - 1] == '.');
}

struct Place {
  size_t target, module;
};

class Packer {
 public:
  Packer(const LoraAdapter& adapter, const LoraTargets& targets, const KernelTable& ops, DType dtype)
      : adapter_(adapter), targets_(targets.all()), ops_(ops), dtype_(dtype), max_rank_(targets.max_rank()) {
    found_.resize(targets_.size());
    for (const LoraAdapterModule& module : adapter.modules()) place(module);
  }

  // The first time without memory: how much it takes.
  size_t pack(std::vector<LoraSlot>& slots, std::byte* memory) {
    slots.assign(targets_.size(), {});
    memory_ = memory;
    used_ = 0;
    for (size_t t = 0; t < targets_.size(); ++t) {
      if (!found_[t].empty()) pack_target(t, slots[t]);
    }
    return used_;
  }

 private:
  [[noreturn]] void fail(const LoraAdapterModule& module, const auto&... why) const {
    throw InvalidArgument(str(adapter_.checkpoint().directory(), ": '", module.name, "' ", why...));
  }

  void place(const LoraAdapterModule& module) {
    if (module.rank > max_rank_)
      fail(module, "has rank ", module.rank, ", and max_lora_rank is ", max_rank_, ": raise it");
    bool is_there = false;
    for (size_t t = 0; t < targets_.size(); ++t) {
      for (size_t m = 0; m < targets_[t].modules.size(); ++m) {
        if (!is_same_module(targets_[t].modules[m].name, module.name)) continue;
        const int64_t inputs = targets_[t].total_k, outputs = targets_[t].modules[m].total_rows;
        if (module.a.shape[1] != inputs || module.b.shape[0] != outputs) {
          fail(module, "goes from ", module.a.shape[1], " inputs to ", module.b.shape[0],
               " outputs, in this model from ", inputs, " to ", outputs, ": it was made for another");
        }
        found_[t].resize(targets_[t].modules.size());
        if (found_[t][m] != nullptr) fail(module, "is the same linear as '", found_[t][m]->name, "'");
        found_[t][m] = &module;
        is_there = true;
      }
    }
    if (!is_there) fail(module, "is no linear of this model that adapters may change");
  }

  std::byte* take(int64_t n, int64_t k) {
    const size_t bytes = ops_.linear_pack_rows != nullptr ? ops_.linear_weight_bytes(n, k, dtype_)
                                                          : static_cast<size_t>(n * k) * dtype_bytes(dtype_);
    std::byte* data = memory_ != nullptr ? memory_ + used_ : nullptr;
    used_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return data;
  }

  void write(std::byte* to, int64_t n, int64_t k, int64_t row_begin, const TensorView& rows) const {
    if (ops_.linear_pack_rows != nullptr) {
      ops_.linear_pack_rows({}, {to, n, k, dtype_, /*packed=*/true}, row_begin, rows);
      return;
    }
    for (int64_t row = 0; row < rows.shape[0]; ++row) {
      convert(to + static_cast<size_t>((row_begin + row) * k) * dtype_bytes(dtype_), dtype_, rows.at(row),
              rows.dtype, k);
    }
  }

  std::vector<float> read(const LoraAdapterModule& module, const TensorView& tensor, float scale) const {
    const int64_t count = tensor.numel();
    std::vector<float> values(static_cast<size_t>(count));
    std::vector<std::byte> raw(static_cast<size_t>(count) * dtype_bytes(tensor.dtype));
    adapter_.checkpoint().read(tensor.as<std::byte>(), tensor.dtype, count, raw.data());
    convert(values.data(), DType::kFloat32, raw.data(), tensor.dtype, count);
    for (float& value : values) value *= scale;
    // Finite as they were, they may leave the range of the dtype that is computed in.
    raw.resize(static_cast<size_t>(count) * dtype_bytes(dtype_));
    convert(raw.data(), dtype_, values.data(), DType::kFloat32, count);
    if (!all_finite(raw.data(), dtype_, count))
      fail(module, "times its scale ", scale, " has values that ", dtype_name(dtype_), " cannot hold");
    return values;
  }

  void pack_target(size_t t, LoraSlot& slot) {
    const LoraTarget& target = targets_[t];
    int64_t total_rank = 0;
    for (size_t m = 0; m < found_[t].size(); ++m) {
      if (found_[t][m] == nullptr) continue;
      slot.ranks[m] = found_[t][m]->rank;
      total_rank += slot.ranks[m];
    }
    std::byte* a = take(total_rank, target.k);
    slot.a = a;
    int64_t row = 0;
    for (size_t m = 0; m < found_[t].size(); ++m) {
      const LoraAdapterModule* module = found_[t][m];
      if (module == nullptr) continue;
      const int64_t rank = module->rank, num_outputs = target.outputs[m].num_outputs;
      std::byte* b = take(num_outputs, rank);
      slot.b[m] = b;
      if (memory_ == nullptr) continue;
      std::vector<float> values = read(*module, module->a, 1.0F);
      const TensorView whole(values.data(), DType::kFloat32, rank, target.total_k);
      write(a, total_rank, target.k, row, slice_columns(whole, target.k_begin, target.k));
      row += rank;
      values = read(*module, module->b, module->scale);
      const TensorView all(values.data(), DType::kFloat32, target.modules[m].total_rows, rank);
      int64_t output = 0;
      for (const LoraTargetModule::Rows& rows : target.modules[m].rows) {
        if (rows.count > 0) write(b, num_outputs, rank, output, slice_rows(all, rows.begin, rows.count));
        output += rows.count;
      }
    }
  }

  const LoraAdapter& adapter_;
  const std::vector<LoraTarget>& targets_;
  const KernelTable& ops_;
  DType dtype_;
  int32_t max_rank_;
  std::vector<std::vector<const LoraAdapterModule*>> found_;  // by target and module; null: none
  std::byte* memory_ = nullptr;
  size_t used_ = 0;
};

}  // namespace

LoraWeights::LoraWeights(const LoraAdapter& adapter, const LoraTargets& targets, const KernelTable& ops,
                         DType dtype) {
  Packer packer(adapter, targets, ops, dtype);
  memory_ = Buffer(packer.pack(slots_, nullptr));
  packer.pack(slots_, memory_.data());
}

void LoraStore::load(LoraId id, const LoraAdapter& adapter) {
  auto weights = std::make_shared<const LoraWeights>(adapter, targets_, ops_, dtype_);
  const std::lock_guard lock(mutex_);
  adapters_[id] = std::move(weights);
}

void LoraStore::unload(LoraId id) {
  std::shared_ptr<const LoraWeights> last;  // its memory goes without the lock
  const std::lock_guard lock(mutex_);
  const auto found = adapters_.find(id);
  if (found == adapters_.end()) return;
  last = std::move(found->second);
  adapters_.erase(found);
}

std::shared_ptr<const LoraWeights> LoraStore::find(LoraId id) const {
  const std::lock_guard lock(mutex_);
  const auto found = adapters_.find(id);
  QUIRE_CHECK(found != adapters_.end(), "adapter ", id, " is not loaded");
  return found->second;
}

}  // namespace quire
