#include "worker/lora_store.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <mutex>
#include <span>
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

// An expert's number in a name, "mlp.experts.3.up_proj", and the name with '*' there; -1: none.
std::pair<int32_t, std::string> expert_of(const std::string& name) {
  constexpr std::string_view kExperts = ".experts.";
  const size_t at = name.find(kExperts);
  if (at == name.npos) return {-1, name};
  const size_t begin = at + kExperts.size();
  int32_t expert = 0;
  const auto [end, error] = std::from_chars(name.data() + begin, name.data() + name.size(), expert);
  if (error != std::errc() || expert < 0 || *end != '.') return {-1, name};
  return {expert, name.substr(0, begin) + '*' + end};
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
        for (const LoraAdapterModule* module : found_[t][m]) {
          if (module != nullptr) slot.ranks[m] = std::max(slot.ranks[m], targets_.padded(module->rank));
        }
      }
      const size_t begin = used;
      slot.a = take(slot.total_rank(), target.k);
      for (size_t m = 0; m < found_[t].size(); ++m) {
        if (slot.ranks[m] > 0) slot.b[m] = take(target.outputs[m].num_outputs, slot.ranks[m]);
      }
      if (target.num_experts == 0) continue;
      slot.expert_stride_bytes = static_cast<int64_t>(used - begin);
      used = begin + (used - begin) * static_cast<size_t>(target.num_experts);
    }
    return used;
  }

  // Fills one of them. Thread-safe for different ones.
  void pack(size_t t, const LoraSlot& slot) const {
    const LoraTarget& target = targets_.all()[t];
    int64_t first = 0;
    for (size_t m = 0; m < found_[t].size(); ++m) {
      if (slot.ranks[m] == 0) continue;
      const LoraMatrix a = {slot.a, slot.total_rank(), target.k};
      const LoraMatrix b = {slot.b[m], target.outputs[m].num_outputs, slot.ranks[m]};
      if (target.num_experts == 0) {
        const LoraAdapterModule& module = *found_[t][m].front();
        pack_a(module, target, a, first);
        pack_b(module, target.modules[m], b);
        write_zeros(a, first + module.rank, slot.ranks[m] - module.rank);
      } else {
        pack_experts(found_[t][m], target, target.modules[m], slot.expert_stride_bytes, a, b, first);
      }
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
    LoraMatrix behind(int64_t bytes) const { return {static_cast<const std::byte*>(data) + bytes, n, k}; }
  };
  // By expert, null: the adapter has nothing for that one; of a linear, or of a parameter of all, one.
  using Modules = std::vector<const LoraAdapterModule*>;

  [[noreturn]] void fail(const LoraAdapterModule& module, const auto&... why) const {
    throw InvalidArgument(str(adapter_.checkpoint().directory(), ": '", module.name, "' ", why...));
  }

  void find_target(const LoraAdapterModule& module) {
    if (module.rank > targets_.max_rank())
      fail(module, "has rank ", module.rank, ", and max_lora_rank is ", targets_.max_rank(), ": raise it");
    const std::string name = targets_.known_name(module.name);
    const auto [expert, any_expert] = expert_of(name);
    bool is_there = false;
    for (size_t t = 0; t < found_.size(); ++t) {
      const LoraTarget& target = targets_.all()[t];
      for (size_t m = 0; m < target.modules.size(); ++m) {
        const LoraTargetModule& which = target.modules[m];
        const bool is_of_one = target.num_experts > 0 && !which.is_of_all;
        if ((is_of_one && expert < 0) || !is_same_module(which.name, is_of_one ? any_expert : name)) continue;
        check_shapes(module, target, which);
        if (is_of_one && expert >= target.num_experts)
          fail(module, "is of an expert that this model has not: it has ", target.num_experts, ", from 0 on");
        found_[t].resize(target.modules.size());
        check_is_one_form(module, t, which.is_of_all);
        Modules& modules = found_[t][m];
        modules.resize(is_of_one ? static_cast<size_t>(target.num_experts) : 1);
        const LoraAdapterModule*& place = modules[is_of_one ? static_cast<size_t>(expert) : 0];
        if (place != nullptr) fail(module, "is the same linear as '", place->name, "'");
        place = &module;
        is_there = true;
      }
    }
    if (is_there) return;
    if (!targets_.have_experts() && name.find(".experts.") != name.npos)
      fail(module, "is of a mixture's experts, and enable_lora_experts is false");
    if (name.ends_with("lm_head")) {
      fail(
          module,
          "is the head, which adapters may not change: train without it, or merge the adapter into its model "
          "with peft's merge_and_unload, and give that model");
    }
    fail(module, "is no linear of this model that adapters may change");
  }

  void check_shapes(const LoraAdapterModule& module, const LoraTarget& target,
                    const LoraTargetModule& which) const {
    if (which.is_of_all && module.num_experts == 0)
      fail(module, "is a parameter of all experts, and not among 'target_parameters'");
    const int32_t has = std::max(1, module.num_experts), wanted = which.is_of_all ? target.num_experts : 1;
    if (has != wanted)
      fail(module, "has ", has, " experts, in this model ", wanted, ": it was made for another");
    const int64_t inputs = target.total_k, outputs = which.total_rows;
    if (module.a.shape[1] == inputs && module.b.shape[0] == outputs) return;
    fail(module, "goes from ", module.a.shape[1], " inputs to ", module.b.shape[0],
         " outputs, in this model from ", inputs, " to ", outputs, ": it was made for another");
  }

  // Of a mixture.
  void check_is_one_form(const LoraAdapterModule& module, size_t t, bool is_of_all) const {
    const LoraTarget& target = targets_.all()[t];
    for (size_t m = 0; m < found_[t].size(); ++m) {
      if (target.modules[m].is_of_all == is_of_all) continue;
      for (const LoraAdapterModule* other : found_[t][m]) {
        if (other != nullptr)
          fail(module, "and '", other->name, "' are of the same experts: all of them, and one by itself");
      }
    }
  }

  // Rows [begin, begin + count) of a matrix of the adapter, times `scale`, in the dtype that is computed in:
  // calls take(first, rows) for some of them after the other, so that what is in between stays in a cache.
  template <typename Take>
  void read_rows(const LoraAdapterModule& module, const TensorView& tensor, float scale, int64_t begin,
                 int64_t count, const Take& take) const {
    constexpr int64_t kValues = 16384;
    const int64_t columns = tensor.shape[1], at_once = std::clamp(kValues / columns, int64_t{1}, count);
    const size_t row_bytes = static_cast<size_t>(columns) * dtype_bytes(tensor.dtype);
    std::vector<float> values(static_cast<size_t>(at_once * columns));
    std::vector<std::byte> raw(values.size() * std::max(dtype_bytes(tensor.dtype), dtype_bytes(dtype_)));
    for (int64_t first = begin; first < begin + count; first += at_once) {
      const int64_t rows = std::min(at_once, begin + count - first), size = rows * columns;
      adapter_.checkpoint().read(tensor.as<std::byte>() + static_cast<size_t>(first) * row_bytes,
                                 tensor.dtype, size, raw.data());
      convert(values.data(), DType::kFloat32, raw.data(), tensor.dtype, size);
      for (float& value : std::span(values).first(static_cast<size_t>(size))) value *= scale;
      // Finite as they were, they may leave the range of the dtype that is computed in.
      convert(raw.data(), dtype_, values.data(), DType::kFloat32, size);
      if (!all_finite(raw.data(), dtype_, size))
        fail(module, "times its scale ", scale, " has values that ", dtype_name(dtype_), " cannot hold");
      take(first, TensorView(raw.data(), dtype_, rows, columns));
    }
  }

  // All of them, in fp32.
  std::vector<float> read(const LoraAdapterModule& module, const TensorView& tensor, float scale) const {
    const int64_t columns = tensor.shape[1];
    std::vector<float> values(static_cast<size_t>(tensor.numel()));
    read_rows(module, tensor, scale, 0, tensor.shape[0], [&](int64_t first, const TensorView& rows) {
      convert(&values[static_cast<size_t>(first * columns)], DType::kFloat32, rows.data, dtype_,
              rows.numel());
    });
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
    if (k == to.k && rows.stride[0] == k) {
      convert(to.row(first, dtype_), dtype_, rows.data, rows.dtype, rows.numel());
      return;
    }
    for (int64_t row = 0; row < rows.shape[0]; ++row) {
      std::byte* place = to.row(first + row, dtype_);
      convert(place, dtype_, rows.at(row), rows.dtype, k);
      std::memset(place + static_cast<size_t>(k) * bytes, 0, static_cast<size_t>(to.k - k) * bytes);
    }
  }

  void write_zeros(const LoraMatrix& to, int64_t first, int64_t count) const {
    if (count == 0) return;
    std::vector<float> zeros(static_cast<size_t>(count * to.k));
    write(to, first, TensorView(zeros.data(), DType::kFloat32, count, to.k));
  }

  void pack_a(const LoraAdapterModule& module, const LoraTarget& target, const LoraMatrix& a,
              int64_t first) const {
    const bool is_as_published =
        ops_.linear_pack_rows == nullptr && module.a.dtype == dtype_ && target.k == target.total_k;
    if (is_as_published) {
      adapter_.checkpoint().read(module.a.as<std::byte>(), dtype_, module.a.numel(), a.row(first, dtype_));
      return;
    }
    read_rows(module, module.a, 1.0F, 0, module.rank, [&](int64_t row, const TensorView& rows) {
      write(a, first + row, slice_columns(rows, target.k_begin, target.k));
    });
  }

  void pack_b(const LoraAdapterModule& module, const LoraTargetModule& which, const LoraMatrix& b) const {
    int64_t output = 0;
    for (const LoraTargetModule::Rows& run : which.rows) {
      if (run.count == 0) continue;
      read_rows(module, module.b, module.scale, run.begin, run.count,
                [&](int64_t row, const TensorView& rows) { write(b, output + row - run.begin, rows); });
      output += run.count;
    }
  }

  // Of all experts, from the first one's `a` and `b` on. `first`: the module's row of `a`.
  void pack_experts(const Modules& modules, const LoraTarget& target, const LoraTargetModule& which,
                    int64_t stride, const LoraMatrix& a, const LoraMatrix& b, int64_t first) const {
    const LoraAdapterModule* module = nullptr;
    std::vector<float> a_values, b_values, rows(static_cast<size_t>(b.n * b.k));
    for (int32_t expert = 0; expert < target.num_experts; ++expert) {
      const LoraMatrix to_a = a.behind(expert * stride), to_b = b.behind(expert * stride);
      if (expert == 0 || !which.is_of_all) {
        module = modules[static_cast<size_t>(which.is_of_all ? 0 : expert)];
        if (module != nullptr) {
          a_values = read(*module, module->a, 1.0F);
          b_values = read(*module, module->b, module->scale);
        }
      }
      const int64_t rank = module != nullptr ? module->rank : 0;
      write_zeros(to_a, first + rank, b.k - rank);
      if (module == nullptr) {
        write_zeros(to_b, 0, b.n);
        continue;
      }
      // Those of a parameter lie by expert in `a`, and take turns in `b`.
      const int64_t turns = which.is_of_all ? target.num_experts : 1, turn = which.is_of_all ? expert : 0;
      const TensorView all(a_values.data(), DType::kFloat32, turns * rank, target.total_k);
      write(to_a, first, slice_columns(slice_rows(all, turn * rank, rank), target.k_begin, target.k));
      std::ranges::fill(rows, 0.0F);
      float* row = rows.data();
      for (const LoraTargetModule::Rows& run : which.rows) {
        for (int64_t i = 0; i < run.count; ++i, row += b.k) {
          const float* from =
              &b_values[static_cast<size_t>((run.begin + i * run.step) * rank * turns + turn)];
          for (int64_t r = 0; r < rank; ++r) row[r] = from[r * turns];
        }
      }
      write(to_b, 0, TensorView(rows.data(), DType::kFloat32, b.n, b.k));
    }
  }

  const LoraAdapter& adapter_;
  const LoraTargets& targets_;
  const KernelTable& ops_;
  DType dtype_;
  std::vector<std::vector<Modules>> found_;  // by target and module; empty: none
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
  for (size_t t = 0; t < slots_.size(); ++t)
    changes_experts_ |= targets.all()[t].num_experts > 0 && slots_[t].a != nullptr;
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
