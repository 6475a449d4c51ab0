// What is done to logits before a token is drawn, and log-probabilities.
#include <algorithm>

#include "common/launch.h"
#include "common/row_select.cuh"
#include "common/types.cuh"
#include "ops.h"

namespace quire::cuda {
namespace {

constexpr int kThreads = 256;

// ---- biases and masks -----------------------------------------------------------------------------

// One thread per pair.
__global__ void __launch_bounds__(kThreads) logit_bias_kernel(LogitBiasArgs a) {
  const int i = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (i >= a.count) return;
  float* logit = static_cast<float*>(a.logits.data) + a.row[i] * a.logits.stride[0] + a.token_id[i];
  // Not by adding: an infinite logit would become NaN.
  *logit = a.bias[i] == -INFINITY ? -INFINITY : *logit + a.bias[i];
}

// blockIdx.y: row of the mask. A thread has four tokens, and only writes.
__global__ void __launch_bounds__(kThreads)
    bitmask_kernel(float* logits, int64_t stride, int vocab, const int32_t* rows, int64_t rows_stride,
                   const uint32_t* bitmask, int64_t bitmask_stride) {
  const int first = 4 * static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (first >= vocab) return;
  const int64_t i = blockIdx.y;
  const uint32_t forbidden = ~(bitmask[i * bitmask_stride + first / 32] >> (first % 32)) & 15;
  float* row = logits + rows[i * rows_stride] * stride;
  if (forbidden == 15 && first + 4 <= vocab && reinterpret_cast<uintptr_t>(row) % 16 == 0) {
    *reinterpret_cast<float4*>(row + first) = make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
  } else {
#pragma unroll
    for (int j = 0; j < 4; ++j)
      if ((forbidden >> j & 1) != 0 && first + j < vocab) row[first + j] = -INFINITY;
  }
}

// One thread per sequence, which most of the time ends with the first token that it compares.
__global__ void __launch_bounds__(kThreads) bad_words_kernel(BadWordsArgs a) {
  const int i = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (i >= a.count) return;
  const int row = a.row[i], num_before = a.begin[i + 1] - a.begin[i] - 1;
  const int num_tokens = a.num_tokens[row];
  if (num_before > num_tokens - a.num_prompt_tokens[row]) return;
  const int32_t* word = a.words + a.begin[i];
  const int32_t* last = a.token_ids[row] + num_tokens - num_before;
  for (int j = num_before - 1; j >= 0; --j)
    if (word[j] != last[j]) return;
  static_cast<float*>(a.logits.data)[row * a.logits.stride[0] + word[num_before]] = -INFINITY;
}

// ---- penalties ------------------------------------------------------------------------------------

constexpr int kTile = 12288;  // tokens of the vocabulary that are counted in shared memory at once
constexpr int kPenaltyThreads = 512;

// blockIdx.x: tile, blockIdx.y: row. Looks through all of the row's tokens for those of its tile.
__global__ void __launch_bounds__(kPenaltyThreads) penalties_kernel(PenaltyArgs a) {
  constexpr uint32_t kSeen = 1U << 31;  // beside the count of those in the output
  __shared__ uint32_t counts[kTile];
  const int r = static_cast<int>(blockIdx.y);
  const float presence = a.presence[r], frequency = a.frequency[r], repetition = a.repetition[r];
  if (presence == 0.0F && frequency == 0.0F && repetition == 1.0F) return;
  const int begin = static_cast<int>(blockIdx.x) * kTile;
  const int size = static_cast<int>(min(a.logits.shape[1] - begin, int64_t{kTile}));
  for (int i = threadIdx.x; i < size; i += kPenaltyThreads) counts[i] = 0;
  __syncthreads();
  const int32_t* tokens = a.token_ids[r];
  const int num_prompt = a.num_prompt_tokens[r], num_tokens = a.num_tokens[r];
  // Of the prompt only the repetition penalty wants to know.
  if (repetition != 1.0F) {
    for (int i = threadIdx.x; i < min(num_prompt, num_tokens); i += kPenaltyThreads) {
      const int at = tokens[i] - begin;
      if (at >= 0 && at < size) atomicOr(&counts[at], kSeen);
    }
  }
  for (int i = num_prompt + static_cast<int>(threadIdx.x); i < num_tokens; i += kPenaltyThreads) {
    const int at = tokens[i] - begin;
    if (at >= 0 && at < size) atomicAdd(&counts[at], 1U);
  }
  __syncthreads();
  float* logits = static_cast<float*>(a.logits.data) + r * a.logits.stride[0] + begin;
  for (int i = threadIdx.x; i < size; i += kPenaltyThreads) {
    if (counts[i] == 0) continue;
    float x = logits[i];
    if (repetition != 1.0F) x = x > 0.0F ? x / repetition : x * repetition;
    const uint32_t in_output = counts[i] & ~kSeen;
    if (in_output != 0) x -= frequency * static_cast<float>(in_output) + presence;
    logits[i] = x;
  }
}

// ---- log-probabilities ----------------------------------------------------------------------------

constexpr int kRowThreads = 1024;

struct HighestAndSum {
  float highest = -INFINITY;
  float sum = 0.0F;  // of exp(x - highest)

  __device__ void add(float x) {
    if (x > highest) {
      sum = fmaf(sum, expf(highest - x), 1.0F);
      highest = x;
    } else if (x > -INFINITY) {
      sum += expf(x - highest);
    }
  }
};

// The highest logit and the logarithm of the sum of exponentials, on every thread of the block.
__device__ float log_sum_exp(const float* row, int n, float* shared, float* highest) {
  HighestAndSum own;
  for_each_logit(row, 0, n, [&](int, float x) { own.add(x); });
  float best = warp_max(own.highest);
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = best;
  __syncthreads();
  best = warp_max(threadIdx.x % 32 < kRowThreads / 32 ? shared[threadIdx.x % 32] : -INFINITY);
  __syncthreads();
  const float sum = block_sum(own.highest > -INFINITY ? own.sum * expf(own.highest - best) : 0.0F, shared);
  *highest = best;
  return best + logf(sum);
}

// One block per row.
__global__ void __launch_bounds__(kRowThreads)
    log_softmax_kernel(float* logprobs, int64_t out_stride, const float* logits, int64_t stride, int vocab) {
  __shared__ float shared[33];
  const float* row = logits + int64_t{blockIdx.x} * stride;
  float* out = logprobs + int64_t{blockIdx.x} * out_stride;
  float highest;
  const float log_sum = log_sum_exp(row, vocab, shared, &highest);
  const bool aligned = (reinterpret_cast<uintptr_t>(row) | reinterpret_cast<uintptr_t>(out)) % 16 == 0;
  for_each_four(row, 0, vocab, [&](int i, float4 v) {
    v = make_float4(v.x - log_sum, v.y - log_sum, v.z - log_sum, v.w - log_sum);
    if (aligned && i + 4 <= vocab) {
      *reinterpret_cast<float4*>(out + i) = v;
    } else {
      out[i] = v.x;
      if (i + 1 < vocab) out[i + 1] = v.y;
      if (i + 2 < vocab) out[i + 2] = v.z;
      if (i + 3 < vocab) out[i + 3] = v.w;
    }
  });
}

constexpr int kMaxTop = 128;
constexpr int kListSize = 2048;

// One block per row. Counting by distance from the maximum says which tokens can be among the likeliest;
// those are listed and sorted. Where the list would be too long, its bound is selected in the row.
__global__ void __launch_bounds__(kRowThreads) top_logprobs_kernel(TopLogprobsArgs a) {
  __shared__ float shared[33];
  __shared__ Ranked reduce[32];
  __shared__ union {
    uint32_t bins[kBins];
    SelectMemory select;
  } memory;
  __shared__ Ranked list[kListSize];
  __shared__ int list_count, shared_last;
  const int r = static_cast<int>(blockIdx.x), vocab = static_cast<int>(a.logits.shape[1]);
  const int num_top = min(a.num_top, vocab);
  const float* row =
      static_cast<const float*>(a.logits.data) + (a.row != nullptr ? a.row[r] : r) * a.logits.stride[0];
  const auto chosen_id = static_cast<uint32_t>(a.chosen_token_id[r]);
  const Ranked chosen = ranked(row[chosen_id], chosen_id);

  for (int i = threadIdx.x; i < kBins; i += kRowThreads) memory.bins[i] = 0;
  if (threadIdx.x == 0) list_count = 0;
  float highest;
  const float log_sum = log_sum_exp(row, vocab, shared, &highest);
  const auto bin = [&](float x) { return bin_of(highest - x); };
  Ranked likelier = 0;
  for_each_logit(row, 0, vocab, [&](int i, float x) {
    likelier += ranked(x, static_cast<uint32_t>(i)) > chosen ? 1 : 0;
    if (num_top > 0 && bin(x) < kBins - 1) atomicAdd(&memory.bins[bin(x)], 1U);
  });
  likelier = block_reduce<false>(likelier, reduce);
  if (threadIdx.x == 0) {
    a.chosen_logprob[r] = row[chosen_id] - log_sum;
    a.chosen_rank[r] = static_cast<int32_t>(likelier) + 1;
  }
  if (num_top == 0) return;

  if (threadIdx.x < 32) {
    int last = bin_of_count(memory.bins, static_cast<uint32_t>(num_top));
    const int size = last < kBins - 1 ? static_cast<int>(count_upto(memory.bins, last)) : vocab;
    if (size > kListSize) last = -1;
    if (threadIdx.x == 0) shared_last = last;
  }
  __syncthreads();
  const int last = shared_last;
  Ranked bound = 0;
  if (last < 0)
    bound = select_bound(
        RowTeam(0, 1, vocab), row, bound, static_cast<Ranked>(num_top), [](float) { return Ranked{1}; },
        memory.select);
  for_each_logit(row, 0, vocab, [&](int i, float x) {
    const Ranked token = ranked(x, static_cast<uint32_t>(i));
    if (last >= 0 ? bin(x) > last : token < bound) return;
    const int at = atomicAdd(&list_count, 1);
    if (at < kListSize) list[at] = token;
  });
  __syncthreads();
  const int n = min(list_count, kListSize);
  int size = 1;
  while (size < n) size *= 2;
  for (int i = n + static_cast<int>(threadIdx.x); i < size; i += kRowThreads) list[i] = 0;
  block_sort(list, size);
  for (int i = threadIdx.x; i < num_top; i += kRowThreads) {
    const int64_t at = int64_t{r} * a.num_top + i;
    a.top_token_ids[at] = static_cast<int32_t>(id_of(list[i]));
    a.top_logprobs[at] = logit_of(list[i]) - log_sum;
  }
}
static_assert(kMaxTop <= kListSize);

}  // namespace

void apply_logit_bias(const LaunchContext& ctx, const LogitBiasArgs& args) {
  if (args.count == 0) return;
  logit_bias_kernel<<<static_cast<unsigned>(ceil_div(args.count, kThreads)), kThreads, 0, stream_of(ctx)>>>(
      args);
  check_launch(ctx, "apply_logit_bias", args.logits);
}

void apply_bitmask(const LaunchContext& ctx, TensorView logits, TensorView rows, TensorView bitmask) {
  const auto vocab = static_cast<int>(logits.shape[1]);
  if (rows.shape[0] == 0 || vocab == 0) return;
  const dim3 grid(static_cast<unsigned>(ceil_div(vocab, 4 * kThreads)), static_cast<unsigned>(rows.shape[0]));
  bitmask_kernel<<<grid, kThreads, 0, stream_of(ctx)>>>(logits.as<float>(), logits.stride[0], vocab,
                                                        rows.as<int32_t>(), rows.stride[0],
                                                        bitmask.as<uint32_t>(), bitmask.stride[0]);
  check_launch(ctx, "apply_bitmask", logits);
}

void apply_bad_words(const LaunchContext& ctx, const BadWordsArgs& args) {
  if (args.count == 0) return;
  bad_words_kernel<<<static_cast<unsigned>(ceil_div(args.count, kThreads)), kThreads, 0, stream_of(ctx)>>>(
      args);
  check_launch(ctx, "apply_bad_words", args.logits);
}

void apply_penalties(const LaunchContext& ctx, const PenaltyArgs& args) {
  const auto rows = static_cast<unsigned>(args.logits.shape[0]);
  if (rows == 0 || args.logits.shape[1] == 0) return;
  const dim3 grid(static_cast<unsigned>(ceil_div<int64_t>(args.logits.shape[1], kTile)), rows);
  penalties_kernel<<<grid, kPenaltyThreads, 0, stream_of(ctx)>>>(args);
  check_launch(ctx, "apply_penalties", args.logits);
}

void log_softmax(const LaunchContext& ctx, TensorView logprobs, TensorView logits) {
  if (logits.numel() == 0) return;
  log_softmax_kernel<<<static_cast<unsigned>(logits.shape[0]), kRowThreads, 0, stream_of(ctx)>>>(
      logprobs.as<float>(), logprobs.stride[0], logits.as<float>(), logits.stride[0],
      static_cast<int>(logits.shape[1]));
  check_launch(ctx, "log_softmax", logits);
}

void top_logprobs(const LaunchContext& ctx, const TopLogprobsArgs& args) {
  const int64_t count = args.row != nullptr ? args.num_chosen : args.logits.shape[0];
  if (args.logits.numel() == 0 || count == 0) return;
  top_logprobs_kernel<<<static_cast<unsigned>(count), kRowThreads, 0, stream_of(ctx)>>>(args);
  check_launch(ctx, "top_logprobs", args.logits);
}

}  // namespace quire::cuda
