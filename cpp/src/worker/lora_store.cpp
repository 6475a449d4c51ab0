#include "worker/lora_store.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>

#include "util/check.h"
#include "util/for_each_on_threads.h"
#include "weights/convert.h"

namespace quire {
namespace {

// Checkpoints and adapters agree in a name but for what stands before it: some checkpoints were saved without
// the head, and call a layer "h.0" that is "transformer.h.0" in the whole.
bool is_same_module(std::string_view a, std::string_view b) {
  if (a.size() < b.size()) std::swap(a, b);
  return a.ends_with(b) && (a.size() == b.size() || a[a.size() - b.size() - 1] == '.');
}

// Brings the modules of an adapter to the linears that they change.
class Packer {
 public:
  Packer(const LoraAdapter& adapter, const LoraTargets& targets, const KernelTable& ops, DType dtype)
      : adapter_(adapter), targets_(targets), ops_(ops), dtype_(dtype) {
    found_.resize(targets.all().size());
    for (const LoraAdapterModule& module : adapter.modules()) find_target(module);
  }

  // Says where everything will lie, from `memory` on, and how many bytes that is.
  size_t place(std::vector<LoraSlot>& slots, const std::byte* memory) const {
    slots.assign(found_.size(), {});
    size_t used = 0;
    const auto take = [&](int64_t n, int64_t k) {
      return memory + std::exchange(used, used + targets_.matrix_bytes(n, k, dtype_));
    };
    for (size_t t = 0; t < found_.size(); ++t) {
      if (found_[t].empty()) continue;
      const LoraTarget& target = targets_.all()[t];
      LoraSlot& slot = slots[t];
      for (size_t m = 0; m < found_[t].size(); ++m) {
        if (found_[t][m] != nullptr) slot.ranks[m] = targets_.padded(found_[t][m]->rank);
      }
      slot.a = take(slot.total_rank(), target.k);
      for (size_t m = 0; m < found_[t].size(); ++m) {
        if (slot.ranks[m] > 0) slot.b[m] = take(target.outputs[m].num_outputs, slot.ranks[m]);
      }
    }
    return used;
  }

  // Fills one of them. Thread-safe for different ones.
  void pack(size_t t, const LoraSlot& slot) const {
    const LoraTarget& target = targets_.all()[t];
    int64_t first = 0;
    for (size_t m = 0; m < found_[t].size(); ++m) {
      if (found_[t][m] == nullptr) continue;
      const LoraMatrix a = {slot.a, slot.total_rank(), target.k};
      const LoraMatrix b = {slot.b[m], target.outputs[m].num_outputs, slot.ranks[m]};
      pack_a(*found_[t][m], target, a, first);
      pack_b(*found_[t][m], target.modules[m], b);
      for (int64_t row = first + found_[t][m]->rank; row < first + slot.ranks[m]; ++row)
        std::memset(a.row(row, dtype_), 0, static_cast<size_t>(a.k) * dtype_bytes(dtype_));
      first += slot.ranks[m];
    }
  }

 private:
  struct LoraMatrix {
    const void* data;
    int64_t n, k;
    // Where rows lie one behind the other.
    std::byte* row(int64_t i, DType dtype) const {
      return const_cast<std::byte*>(static_cast<const std::byte*>(data)) +
             static_cast<size_t>(i * k) * dtype_bytes(dtype);
    }
  };

  [[noreturn]] void fail(const LoraAdapterModule& module, const auto&... why) const {
    throw InvalidArgument(str(adapter_.checkpoint().directory(), ": '", module.name, "' ", why...));
  }

  void find_target(const LoraAdapterModule& module) {
    if (module.rank > targets_.max_rank())
      fail(module, "has rank ", module.rank, ", and max_lora_rank is ", targets_.max_rank(), ": raise it");
    bool is_there = false;
    for (size_t t = 0; t < found_.size(); ++t) {
      const LoraTarget& target = targets_.all()[t];
      for (size_t m = 0; m < target.modules.size(); ++m) {
        if (!is_same_module(target.modules[m].name, module.name)) continue;
        const int64_t inputs = target.total_k, outputs = target.modules[m].total_rows;
        if (module.a.shape[1] != inputs || module.b.shape[0] != outputs) {
          fail(module, "goes from ", module.a.shape[1], " inputs to ", module.b.shape[0],
               " outputs, in this model from ", inputs, " to ", outputs, ": it was made for another");
        }
        found_[t].resize(target.modules.size());
        if (found_[t][m] != nullptr) fail(module, "is the same linear as '", found_[t][m]->name, "'");
        found_[t][m] = &module;
        is_there = true;
      }
    }
    if (!is_there) fail(module, "is no linear of this model that adapters may change");
  }

  // A matrix of the adapter, in fp32.
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

  // From row `first` of a matrix on; what a row has more of is zeros.
  void write(const LoraMatrix& to, int64_t first, const TensorView& rows) const {
    if (ops_.linear_pack_rows != nullptr) {
      ops_.linear_pack_rows({}, {const_cast<void*>(to.data), to.n, to.k, dtype_, /*packed=*/true}, first,
                            rows);
      return;
    }
    const auto bytes = dtype_bytes(dtype_);
    const int64_t k = rows.shape[1];
    for (int64_t row = 0; row < rows.shape[0]; ++row) {
      std::byte* place = to.row(first + row, dtype_);
      convert(place, dtype_, rows.at(row), rows.dtype, k);
      std::memset(place + static_cast<size_t>(k) * bytes, 0, static_cast<size_t>(to.k - k) * bytes);
    }
  }

  void pack_a(const LoraAdapterModule& module, const LoraTarget& target, const LoraMatrix& a,
              int64_t first) const {
    const bool is_as_published =
        ops_.linear_pack_rows == nullptr && module.a.dtype == dtype_ && target.k == target.total_k;
    if (is_as_published) {
      adapter_.checkpoint().read(module.a.as<std::byte>(), dtype_, module.a.numel(), a.row(first, dtype_));
      return;
    }
    std::vector<float> values = read(module, module.a, 1.0F);
    const TensorView whole(values.data(), DType::kFloat32, module.rank, target.total_k);
    write(a, first, slice_columns(whole, target.k_begin, target.k));
  }

  void pack_b(const LoraAdapterModule& module, const LoraTargetModule& which, const LoraMatrix& b) const {
    std::vector<float> values = read(module, module.b, module.scale);
    const TensorView all(values.data(), DType::kFloat32, which.total_rows, module.rank);
    int64_t output = 0;
    for (const LoraTargetModule::Rows& rows : which.rows) {
      if (rows.count > 0) write(b, output, slice_rows(all, rows.begin, rows.count));
      output += rows.count;
    }
  }

  const LoraAdapter& adapter_;
  const LoraTargets& targets_;
  const KernelTable& ops_;
  DType dtype_;
  std::vector<std::vector<const LoraAdapterModule*>> found_;  // by target and module; null: none
};

constexpr size_t kMaxLoadThreads = 8;

}  // namespace

LoraWeights::LoraWeights(const LoraAdapter& adapter, const LoraTargets& targets, const KernelTable& ops,
                         const DeviceRuntime* runtime, DType dtype) {
  const Packer packer(adapter, targets, ops, dtype);
  bytes_ = packer.place(slots_, nullptr);
  if (runtime != nullptr) {
    pinned_ = make_pinned(*runtime, bytes_);
    data_ = static_cast<std::byte*>(pinned_.get());
  } else {
    memory_ = Buffer(bytes_);
    data_ = memory_.data();
  }
  packer.place(slots_, data_);
  const size_t num_threads =
      runtime != nullptr ? std::min<size_t>(kMaxLoadThreads, std::thread::hardware_concurrency() / 2) : 1;
  for_each_on_threads(slots_.size(), num_threads,
                      [&](size_t target) { packer.pack(target, slots_[target]); });
}

void LoraStore::load(LoraId id, const LoraAdapter& adapter) {
  auto weights = std::make_shared<const LoraWeights>(adapter, targets_, ops_, runtime_, dtype_);
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
