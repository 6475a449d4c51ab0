// Lookups and row by row operations.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "convert.h"
#include "ops.h"
#include "parallel.h"

namespace quire::cpu {
namespace {

// Elements worth a thread of their own.
constexpr int64_t kGrainElements = 32768;

int64_t grain_rows(int64_t row_elements) {
  return std::max<int64_t>(1, kGrainElements / std::max<int64_t>(1, row_elements));
}

template <typename From, typename To>
To convert(From x) {
  if constexpr (std::is_same_v<From, To>) {
    return x;
  } else if constexpr (std::is_same_v<To, float>) {
    return bf16_to_float(x);
  } else {
    return float_to_bf16(x);
  }
}

// Row `row` of a table, packed or not. One row of a packed table lies spread over its panel, an element
// (fp32) or a pair (bf16) per line.
template <typename From, typename To>
void copy_table_row(To* out, const LinearWeight& table, int64_t row) {
  constexpr int64_t kStep = sizeof(From) == 2 ? 2 : 1;
  const From* data = static_cast<const From*>(table.data);
  if (!table.packed) {
    const From* source = data + row * table.k;
    for (int64_t i = 0; i < table.k; ++i) out[i] = convert<From, To>(source[i]);
    return;
  }
  const int64_t depth = kStep == 2 ? (table.k + kDepthAlign - 1) / kDepthAlign * kDepthAlign : table.k;
  const From* source = data + row / kPanelColumns * kPanelColumns * depth + row % kPanelColumns * kStep;
  int64_t i = 0;
  for (; i + kStep <= table.k; i += kStep, source += kPanelColumns * kStep)
    for (int64_t j = 0; j < kStep; ++j) out[i + j] = convert<From, To>(source[j]);
  if (i < table.k) out[i] = convert<From, To>(source[0]);
}

template <typename From, typename To>
void embed(const LaunchContext& ctx, TensorView out, TensorView ids, const LinearWeight& table,
           int32_t vocab_start) {
  parallel_ranges(ctx, ids.shape[0], grain_rows(table.k), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const int64_t row = int64_t{ids.as<int32_t>()[t * ids.stride[0]]} - vocab_start;
      To* to = reinterpret_cast<To*>(out.at(t));
      if (row < 0 || row >= table.n) {
        std::memset(to, 0, static_cast<size_t>(table.k) * sizeof(To));
      } else {
        copy_table_row<From, To>(to, table, row);
      }
    }
  });
}

// f(element) for the element types of the CPU tables.
template <typename F>
void dispatch(DType dtype, F&& f) {
  if (dtype == DType::kBFloat16) {
    f(uint16_t{});
  } else {
    f(float{});
  }
}

template <typename T>
float to_float(T x) {
  return convert<T, float>(x);
}

uint64_t mix(uint64_t x) {  // the finaliser of SplitMix64 (Steele et al., 2014)
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

}  // namespace

void embedding(const LaunchContext& ctx, TensorView out, TensorView ids, const LinearWeight& table,
               int32_t vocab_start) {
  const bool from_bf16 = table.dtype == DType::kBFloat16, to_bf16 = out.dtype == DType::kBFloat16;
  const auto run = from_bf16 ? (to_bf16 ? embed<uint16_t, uint16_t> : embed<uint16_t, float>)
                             : (to_bf16 ? embed<float, uint16_t> : embed<float, float>);
  run(ctx, out, ids, table, vocab_start);
}

void gather_rows(const LaunchContext& ctx, TensorView out, TensorView x, TensorView index) {
  const size_t row_bytes = static_cast<size_t>(x.shape[1]) * dtype_bytes(x.dtype);
  parallel_ranges(ctx, out.shape[0], grain_rows(x.shape[1]), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      std::memcpy(out.at(r), x.at(index.as<int32_t>()[r * index.stride[0]]), row_bytes);
  });
}

void rms_norm(const Isa& isa, const LaunchContext& ctx, TensorView out, TensorView x, TensorView weight,
              float eps, float weight_offset) {
  const auto kernel = isa.rows.rms_norm[type_index(x.dtype)];
  const bool has_heads = x.rank == 3;
  const int64_t rows = has_heads ? x.shape[1] : 1;
  const int64_t n = has_heads ? x.shape[2] : x.shape[1];
  parallel_ranges(ctx, x.shape[0], grain_rows(rows * n), [&](int64_t begin, int64_t end) {
    if (has_heads) {
      for (int64_t t = begin; t < end; ++t)
        kernel(out.at(t), out.stride[1], x.at(t), x.stride[1], weight.data, rows, n, eps, weight_offset);
    } else {
      kernel(out.at(begin), out.stride[0], x.at(begin), x.stride[0], weight.data, end - begin, n, eps,
             weight_offset);
    }
  });
}

void fused_add_rms_norm(const Isa& isa, const LaunchContext& ctx, TensorView out, TensorView residual,
                        TensorView x, TensorView weight, float eps, float weight_offset) {
  const auto kernel = isa.rows.add_rms_norm[type_index(x.dtype)];
  parallel_ranges(ctx, x.shape[0], grain_rows(x.shape[1]), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t)
      kernel(out.at(t), residual.at(t), x.at(t), weight.data, x.shape[1], eps, weight_offset);
  });
}

void layer_norm(const LaunchContext& ctx, TensorView out, TensorView x, TensorView weight, TensorView bias,
                float eps) {
  const int64_t n = x.shape[1];
  dispatch(x.dtype, [&](auto type) {
    using T = decltype(type);
    const auto *w = weight.as<T>(), *b = bias.as<T>();
    parallel_ranges(ctx, x.shape[0], grain_rows(n), [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        const auto* from = reinterpret_cast<const T*>(x.at(t));
        auto* to = reinterpret_cast<T*>(out.at(t));
        double sum = 0, squares = 0;
        for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(to_float(from[i]));
        const double mean = sum / static_cast<double>(n);
        for (int64_t i = 0; i < n; ++i) {
          const double d = static_cast<double>(to_float(from[i])) - mean;
          squares += d * d;
        }
        const double scale = 1 / std::sqrt(squares / static_cast<double>(n) + static_cast<double>(eps));
        for (int64_t i = 0; i < n; ++i) {
          const auto normal = static_cast<float>((static_cast<double>(to_float(from[i])) - mean) * scale);
          to[i] = convert<float, T>(normal * to_float(w[i]) + (b != nullptr ? to_float(b[i]) : 0.0F));
        }
      }
    });
  });
}

namespace {

// Pairs (head[2 i], head[2 i + 1]) of each head. Rounded as the instruction sets' kernels round halves.
template <typename T>
void rotate_interleaved(void* heads, int64_t num_heads, int64_t head_stride, const float* cos,
                        const float* sin, int64_t half) {
  for (int64_t h = 0; h < num_heads; ++h) {
    T* pair = static_cast<T*>(heads) + h * head_stride;
    for (int64_t i = 0; i < half; ++i, pair += 2) {
      const float a = to_float(pair[0]), b = to_float(pair[1]);
      pair[0] = convert<float, T>(std::fma(-b, sin[i], a * cos[i]));
      pair[1] = convert<float, T>(std::fma(a, sin[i], b * cos[i]));
    }
  }
}

}  // namespace

void rotary_embedding(const Isa& isa, const LaunchContext& ctx, TensorView q, TensorView k,
                      TensorView positions, TensorView cos_sin, bool interleaved) {
  const int type = type_index(q.dtype);
  constexpr decltype(RowKernels::rotate) kInterleaved = {rotate_interleaved<float>,
                                                         rotate_interleaved<uint16_t>};
  const auto kernel = interleaved ? kInterleaved[type] : isa.rows.rotate[type];
  const int64_t half = cos_sin.shape[1] / 2;
  parallel_ranges(ctx, q.shape[0], grain_rows((q.shape[1] + k.shape[1]) * 2 * half),
                  [&](int64_t begin, int64_t end) {
                    for (int64_t t = begin; t < end; ++t) {
                      const int64_t position = positions.as<int32_t>()[t * positions.stride[0]];
                      const float* cos = reinterpret_cast<const float*>(cos_sin.at(position));
                      kernel(q.at(t), q.shape[1], q.stride[1], cos, cos + half, half);
                      kernel(k.at(t), k.shape[1], k.stride[1], cos, cos + half, half);
                    }
                  });
}

namespace {

// out = activation(x) * factor, or without `factor` activation(x).
using ActivateRow = void (*)(void* out, const void* x, const void* factor, int64_t n);

template <typename T, float (*kActivation)(float)>
void activate_row(void* out, const void* x, const void* factor, int64_t n) {
  const auto *from = static_cast<const T*>(x), *by = static_cast<const T*>(factor);
  for (int64_t i = 0; i < n; ++i) {
    const float value = kActivation(to_float(from[i]));
    static_cast<T*>(out)[i] = convert<float, T>(by == nullptr ? value : value * to_float(by[i]));
  }
}

// By the error function: not as one plus it, which would leave no digits where it is near -1.
float gelu(float x) { return 0.5F * x * std::erfc(x * -0.70710678F); }
float relu(float x) { return x < 0 ? 0.0F : x; }  // NaN stays
float relu_squared(float x) { return relu(x) * relu(x); }

template <typename T>
void clamped_swiglu_row(void* out, const void* gate, const void* up, int64_t n) {
  constexpr float kLimit = 7.0F, kSteepness = 1.702F;
  const auto *gates = static_cast<const T*>(gate), *ups = static_cast<const T*>(up);
  for (int64_t i = 0; i < n; ++i) {
    const float g = std::min(to_float(gates[i]), kLimit);
    const float u = std::clamp(to_float(ups[i]), -kLimit, kLimit);
    static_cast<T*>(out)[i] = convert<float, T>(g / (1.0F + std::exp(-kSteepness * g)) * (u + 1.0F));
  }
}

ActivateRow activate_row_of(const Isa& isa, Activation activation, DType dtype) {
  const int type = type_index(dtype);
  constexpr ActivateRow kGelu[] = {activate_row<float, gelu>, activate_row<uint16_t, gelu>};
  constexpr ActivateRow kRelu[] = {activate_row<float, relu>, activate_row<uint16_t, relu>};
  constexpr ActivateRow kReluSquared[] = {activate_row<float, relu_squared>,
                                          activate_row<uint16_t, relu_squared>};
  constexpr ActivateRow kClamped[] = {clamped_swiglu_row<float>, clamped_swiglu_row<uint16_t>};
  switch (activation) {
    case Activation::kSilu: return isa.rows.silu[type];
    case Activation::kGelu: return kGelu[type];
    case Activation::kGeluTanh: return isa.rows.gelu_tanh[type];
    case Activation::kRelu: return kRelu[type];
    case Activation::kReluSquared: return kReluSquared[type];
    case Activation::kClampedSwiglu: return kClamped[type];
  }
  return nullptr;
}

// The factors are `factor_at` columns beyond what they are multiplied with; 0: none.
void activate_rows(const LaunchContext& ctx, TensorView out, TensorView x, int64_t factor_at,
                   ActivateRow kernel) {
  const int64_t n = out.shape[1];
  // A single wide row is cut too: its elements do not depend on each other.
  constexpr int64_t kCut = 2048;
  const int64_t cuts = (n + kCut - 1) / kCut;
  const int64_t bytes = static_cast<int64_t>(dtype_bytes(x.dtype));
  parallel_ranges(ctx, x.shape[0] * cuts, kGrainElements / 2 / kCut, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = i / cuts, at = i % cuts * kCut;
      const std::byte* from = x.at(row) + at * bytes;
      kernel(out.at(row) + at * bytes, from, factor_at == 0 ? nullptr : from + factor_at * bytes,
             std::min(kCut, n - at));
    }
  });
}

}  // namespace

void activate(const Isa& isa, const LaunchContext& ctx, TensorView out, TensorView x, Activation activation) {
  activate_rows(ctx, out, x, /*factor_at=*/0, activate_row_of(isa, activation, x.dtype));
}

void activate_and_mul(const Isa& isa, const LaunchContext& ctx, TensorView out, TensorView x,
                      Activation activation) {
  activate_rows(ctx, out, x, /*factor_at=*/out.shape[1], activate_row_of(isa, activation, x.dtype));
}

void soft_cap(const Isa& isa, const LaunchContext& ctx, TensorView x, float cap) {
  constexpr int64_t kCut = 4096;
  const int64_t n = x.shape[1], cuts = (n + kCut - 1) / kCut;
  parallel_ranges(ctx, x.shape[0] * cuts, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t at = i % cuts * kCut;
      isa.rows.soft_cap(reinterpret_cast<float*>(x.at(i / cuts)) + at, std::min(kCut, n - at), cap);
    }
  });
}

void scale(const LaunchContext& ctx, TensorView x, float factor) {
  dispatch(x.dtype, [&](auto type) {
    using T = decltype(type);
    parallel_ranges(ctx, x.shape[0], grain_rows(x.shape[1]), [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        auto* row = reinterpret_cast<T*>(x.at(t));
        for (int64_t i = 0; i < x.shape[1]; ++i) row[i] = convert<float, T>(to_float(row[i]) * factor);
      }
    });
  });
}

void add(const LaunchContext& ctx, TensorView x, TensorView y) {
  dispatch(x.dtype, [&](auto type) {
    using T = decltype(type);
    parallel_ranges(ctx, x.shape[0], grain_rows(x.shape[1]), [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        auto* row = reinterpret_cast<T*>(x.at(t));
        const auto* addend = reinterpret_cast<const T*>(y.at(t));
        for (int64_t i = 0; i < x.shape[1]; ++i)
          row[i] = convert<float, T>(to_float(row[i]) + to_float(addend[i]));
      }
    });
  });
}

void gate_rows(const LaunchContext& ctx, TensorView x, TensorView gate) {
  dispatch(x.dtype, [&](auto type) {
    using T = decltype(type);
    parallel_ranges(ctx, x.shape[0], grain_rows(x.shape[1]), [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        const float factor = 1.0F / (1.0F + std::exp(-*reinterpret_cast<const float*>(gate.at(t))));
        auto* row = reinterpret_cast<T*>(x.at(t));
        for (int64_t i = 0; i < x.shape[1]; ++i) row[i] = convert<float, T>(to_float(row[i]) * factor);
      }
    });
  });
}

void fill_random(const LaunchContext& ctx, TensorView out, float scale, uint64_t seed) {
  const uint64_t base = mix(seed);
  dispatch(out.dtype, [&](auto type) {
    using T = decltype(type);
    parallel_ranges(ctx, out.numel(), kGrainElements, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const uint64_t bits = mix(base + static_cast<uint64_t>(i) * 0x9E3779B97F4A7C15);
        const float value = (static_cast<float>(bits >> 40) * 0x1p-23F - 1.0F) * scale;
        // Towards zero: rounding to nearest would reach `scale`.
        if constexpr (sizeof(T) == 2) {
          out.as<T>()[i] = static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
        } else {
          out.as<T>()[i] = value;
        }
      }
    });
  });
}

}  // namespace quire::cpu
