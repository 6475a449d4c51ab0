#include "kv_cache.h"

#include "ops.h"
#include "parallel.h"

namespace quire::cpu {
namespace {

// One token of one head: a column of the keys, a row of the values. kStep: elements of the depth that
// lie side by side.
template <typename T, int64_t kStep>
void write_head(std::byte* head, const T* k, const T* v, int64_t offset, int64_t block_size,
                int64_t head_size, DType dtype) {
  const int64_t depth = key_depth(head_size, dtype);
  T* keys = reinterpret_cast<T*>(head) + offset * kStep;
  for (int64_t d = 0; d < depth; d += kStep, keys += block_size * kStep)
    for (int64_t i = 0; i < kStep; ++i) keys[i] = d + i < head_size ? k[d + i] : T{};
  T* values = reinterpret_cast<T*>(head + key_bytes(block_size, head_size, dtype));
  values += offset / kStep * head_size * kStep + offset % kStep;
  for (int64_t d = 0; d < head_size; ++d) values[d * kStep] = v[d];
}

template <typename T, int64_t kStep>
void write_tokens(const LaunchContext& ctx, const KVCacheView& cache, TensorView k, TensorView v,
                  TensorView slot_mapping) {
  constexpr int64_t kGrainElements = 8192;
  const int64_t heads = cache.num_kv_heads;
  const int64_t grain = std::max<int64_t>(1, kGrainElements / (heads * cache.head_size));
  parallel_ranges(ctx, k.shape[0], grain, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const int64_t stride = slot_mapping.stride[0];
      const int64_t slot = slot_mapping.dtype == DType::kInt64 ? slot_mapping.as<int64_t>()[t * stride]
                                                               : slot_mapping.as<int32_t>()[t * stride];
      if (slot < 0) continue;
      for (int64_t h = 0; h < heads; ++h) {
        const T* key = reinterpret_cast<const T*>(k.at(t)) + h * k.stride[1];
        const T* value = reinterpret_cast<const T*>(v.at(t)) + h * v.stride[1];
        write_head<T, kStep>(page_head(cache, slot / cache.block_size, h), key, value,
                             slot % cache.block_size, cache.block_size, cache.head_size, cache.dtype);
      }
    }
  });
}

}  // namespace

size_t kv_page_bytes(int32_t block_size, int32_t num_kv_heads, int32_t head_size, DType dtype) {
  return static_cast<size_t>(num_kv_heads * head_bytes(block_size, head_size, dtype));
}

void write_kv_cache(const LaunchContext& ctx, const KVCacheView& kv_cache, TensorView k, TensorView v,
                    TensorView slot_mapping) {
  const auto write = kv_cache.dtype == DType::kBFloat16 ? write_tokens<uint16_t, 2> : write_tokens<float, 1>;
  write(ctx, kv_cache, k, v, slot_mapping);
}

}  // namespace quire::cpu
