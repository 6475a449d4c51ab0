// Drawing tokens.
//
// The highest of logit / temperature + Gumbel noise is a draw from the softmax, so a row without filters is
// an argmax, greedy or not: blocks find the best of their chunks of a row, and the last one to be done the
// best of those (scan_kernel). With filters in some row three more launches follow, and the last one takes
// all rows' tokens:
//   histogram_kernel  counts tokens by their distance below the maximum, and sums the probabilities
//   collect_kernel    decides by the counts how far down the filters can reach, and lists the tokens above
//   resolve_kernel    sorts the list, cuts it at min-p, top-k and top-p, and draws from what is left
// Where the list would be too long (flat or tied logits) resolve_kernel draws from the row itself: of few
// rows each has a cluster of blocks for that.
//
// Probabilities are summed in fixed point and ties go by id, so a row's token does not depend on how the row
// was divided, nor on the rows around it. All of it is draw_math.h's arithmetic: the CPU draws the same
// token.
#include <algorithm>

#include "common/launch.h"
#include "ops.h"
#include "sampling/flat_row.cuh"

namespace quire::cuda {
namespace {

using namespace sampling;

constexpr int kChunkAlign = 1024;
constexpr int kThreads = 256;
constexpr int kResolveThreads = 1024;

// ---- every row ------------------------------------------------------------------------------------

// blockIdx.x: chunk, blockIdx.y: row. In rows with filters this finds the highest logit.
template <bool kGreedy>
__global__ void __launch_bounds__(kThreads) scan_kernel(Args a) {
  __shared__ Ranked shared[32];
  const int r = static_cast<int>(blockIdx.y);
  const Row row(a, r, kGreedy);
  const int begin = static_cast<int>(blockIdx.x) * a.chunk, end = min(begin + a.chunk, a.vocab);
  const int first_id = a.rows.first_token_id;
  float best = -INFINITY;
  int best_id = -1;
  bool nan = false;
  // Ids ascend, so the first of equals stays.
  const auto consider = [&](int id, float score) {
    nan |= score != score;
    if (score > best) {
      best = score;
      best_id = id;
    }
  };
  if (kGreedy || row.mode != Mode::kDraw) {
    for_each_four(row.logits, begin, end, [&](int i, float4 v) {
      consider(i, v.x);
      consider(i + 1, v.y);
      consider(i + 2, v.z);
      consider(i + 3, v.w);
    });
  } else {
    for_each_four(row.logits, begin, end, [&](int i, float4 v) {
      const draw_math::Words words =
          draw_math::words_of_group(row.seed, row.position, static_cast<uint32_t>(first_id + i) / 4);
      const float logits[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (int j = 0; j < 4; ++j)
        consider(i + j, draw_math::score_of(logits[j], row.scale, draw_math::gumbel(words.at[j])));
    });
  }
  const Ranked own = nan           ? kNotANumber
                     : best_id < 0 ? 0
                                   : ranked(best, static_cast<uint32_t>(first_id + best_id));
  const Ranked found = block_reduce<true>(own, shared);
  if (threadIdx.x == 0) row.best[blockIdx.x] = found;
  if (a.filters) {
    if (row.mode != Mode::kFilter || blockIdx.x != 0) return;
    RowScratch& scratch = a.scratch[r];
    for (int i = threadIdx.x; i < kBins; i += kThreads) scratch.bins[i] = 0;
    if (threadIdx.x == 0) {
      scratch.total = 0;
      scratch.count = 0;
    }
    return;
  }
  __shared__ bool is_last;
  if (threadIdx.x == 0) {
    __threadfence();
    is_last = atomicAdd(a.rows.row_counters + r, 1U) == gridDim.x - 1;
    __threadfence();
  }
  __syncthreads();
  if (!is_last || threadIdx.x >= 32) return;
  const Ranked winner = best_of_chunks(row, a.chunks);
  if (threadIdx.x != 0) return;
  a.rows.row_counters[r] = 0;
  if (a.rows.best != nullptr) {
    a.rows.best[r] = winner;
  } else {
    store_token(a.rows, r, winner);
  }
}

// ---- rows with filters ----------------------------------------------------------------------------

// The highest logit, for every thread of the block. Not finite: there is nothing to weigh.
__device__ float highest_logit(const Row& row, int chunks, float* shared) {
  if (threadIdx.x < 32) {
    const Ranked best = best_of_chunks(row, chunks);
    if (threadIdx.x == 0) *shared = best == 0 ? -INFINITY : logit_of(best);
  }
  __syncthreads();
  return *shared;
}

__global__ void __launch_bounds__(kThreads) histogram_kernel(Args a) {
  __shared__ uint32_t bins[kBins];
  __shared__ Ranked shared[32];
  __shared__ float shared_highest;
  const int r = static_cast<int>(blockIdx.y);
  const Row row(a, r, false);
  if (row.mode != Mode::kFilter) return;
  for (int i = threadIdx.x; i < kBins; i += kThreads) bins[i] = 0;
  const float highest = highest_logit(row, a.chunks, &shared_highest);
  if (!isfinite(highest)) return;
  const bool weigh = a.rows.top_p[r] < 1.0F && !Row::has_top_k(a, r);
  const float min_p = a.rows.min_p[r];
  const int begin = static_cast<int>(blockIdx.x) * a.chunk, end = min(begin + a.chunk, a.vocab);
  Ranked total = 0;
  for_each_logit(row.logits, begin, end, [&](int, float x) {
    const float distance = distance_of(highest, x, row.scale);
    const int bin = bin_of(distance);
    if (bin < kBins - 1) atomicAdd(&bins[bin], 1U);
    if (weigh) total += mass_of(distance, min_p);
  });
  if (weigh) {
    total = block_reduce<false>(total, shared);
    if (threadIdx.x == 0) atomicAdd(&a.scratch[r].total, total);
  } else {
    __syncthreads();
  }
  for (int i = threadIdx.x; i < kBins; i += kThreads)
    if (bins[i] != 0) atomicAdd(&a.scratch[r].bins[i], bins[i]);
}

// The last bin that may hold a token which top-p leaves: what lies below it weighs no more than `allowed`,
// each token counted as heavy as its bin permits. One warp.
__device__ int bin_of_mass(const uint32_t* bins, float allowed) {
  const auto value = [&](int i) {  // from the last bin upwards
    const int bin = kBins - 1 - i;
    return static_cast<float>(bins[bin]) * __expf(static_cast<float>(bin) * (-1.0F / kBinsPerUnit));
  };
  return kBins - 1 - first_reaching<float>(value, [&](float below) { return below > allowed; });
}

// Down to which bin the list reaches; -1 when it would be too long. One warp; `bins` in shared memory.
__device__ int bin_of_list(const Args& a, int r, const uint32_t* bins) {
  if (Row::has_top_k(a, r)) {
    const int last = bin_of_count(bins, static_cast<uint32_t>(a.rows.top_k[r]));
    const int size = last < kBins - 1 ? static_cast<int>(count_upto(bins, last)) : a.vocab;
    return size <= kListSize ? last : -1;
  }
  if (a.vocab <= kListSize) return kBins - 1;
  int last = kBins - 1;
  const float top_p = a.rows.top_p[r], min_p = a.rows.min_p[r];
  if (top_p < 1.0F) {
    // The last bin's tokens are not counted: they may take a quarter of what may be cut off. The two together
    // stay below the whole by more than is rounded here.
    const float cut = (1.0F - top_p) * (static_cast<float>(a.scratch[r].total) * 0x1p-43F);
    const auto far = static_cast<float>(a.vocab - static_cast<int>(count_upto(bins, kBins - 2)));
    if (far * __expf((kBins - 1) * (-1.0F / kBinsPerUnit)) <= 0.25F * cut)
      last = bin_of_mass(bins, 0.7F * cut);
  }
  if (min_p > 0.0F) last = min(last, bin_of(fmaxf(0.001F - __logf(min_p) * 1.0001F, 0.0F)));
  if (last == kBins - 1) return -1;
  return count_upto(bins, last) <= kListSize ? last : -1;
}

__device__ void load_bins(uint32_t* bins, const RowScratch& scratch) {
  for (int i = threadIdx.x; i < kBins; i += blockDim.x) bins[i] = scratch.bins[i];
  __syncthreads();
}

__global__ void __launch_bounds__(kThreads) collect_kernel(Args a) {
  __shared__ uint32_t bins[kBins];
  __shared__ float shared_highest;
  __shared__ int shared_last;
  const int r = static_cast<int>(blockIdx.y);
  const Row row(a, r, false);
  if (row.mode != Mode::kFilter) return;
  load_bins(bins, a.scratch[r]);
  if (threadIdx.x < 32) {
    const int last = bin_of_list(a, r, bins);
    if (threadIdx.x == 0) {
      shared_last = last;
      if (blockIdx.x == 0) a.scratch[r].last = last;
    }
  }
  const float highest = highest_logit(row, a.chunks, &shared_highest);  // also waits for shared_last
  const int last = shared_last;
  if (!isfinite(highest) || last < 0) return;
  RowScratch& scratch = a.scratch[r];
  const int begin = static_cast<int>(blockIdx.x) * a.chunk, end = min(begin + a.chunk, a.vocab);
  for_each_logit(row.logits, begin, end, [&](int i, float x) {
    if (bin_of(distance_of(highest, x, row.scale)) > last) return;
    const uint32_t at = atomicAdd(&scratch.count, 1U);
    if (at < kListSize) scratch.list[at] = ranked(x, static_cast<uint32_t>(i));
  });
}

// The sum of a value over the threads before this one, and over all.
__device__ Ranked sum_before(Ranked x, Ranked* shared, Ranked* all) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const Ranked inclusive = sum_upto_lane(x);
  __syncthreads();
  if (lane == 31) shared[warp] = inclusive;
  __syncthreads();
  Ranked before = 0, total = 0;
  for (int i = 0; i < kResolveThreads / 32; ++i) {
    if (i < warp) before += shared[i];
    total += shared[i];
  }
  *all = total;
  return before + inclusive - x;
}

// The token drawn from a list that has all that the filters can leave.
__device__ Ranked draw_from_list(const Args& a, int r, const Row& row, float highest, ResolveMemory& memory) {
  const RowScratch& scratch = a.scratch[r];
  const int n = static_cast<int>(min(scratch.count, static_cast<uint32_t>(kListSize)));
  int size = 1;
  while (size < n) size *= 2;
  for (int i = threadIdx.x; i < size; i += kResolveThreads) memory.list[i] = i < n ? scratch.list[i] : 0;
  block_sort(memory.list, size);
  const bool has_top_k = Row::has_top_k(a, r);
  const int limit = has_top_k ? min(n, a.rows.top_k[r]) : n;
  const float top_p = a.rows.top_p[r], min_p = a.rows.min_p[r];
  // Each thread has a few neighbours.
  constexpr int kEach = kListSize / kResolveThreads;
  const int each = (limit + kResolveThreads - 1) / kResolveThreads,
            first = static_cast<int>(threadIdx.x) * each;
  Ranked masses[kEach], sum = 0, all;
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    masses[j] = 0;
    if (j < each && first + j < limit)
      masses[j] = mass_of(distance_of(highest, logit_of(memory.list[first + j]), row.scale), min_p);
    sum += masses[j];
  }
  Ranked before = sum_before(sum, memory.reduce, &all);
  const double target = static_cast<double>(top_p) * static_cast<double>(has_top_k ? all : scratch.total);
  Ranked best = 0;
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    if (j >= each || first + j >= limit) break;
    const Ranked token = memory.list[first + j];
    const float distance = distance_of(highest, logit_of(token), row.scale);
    if ((top_p >= 1.0F || before == 0 || static_cast<double>(before) < target) &&
        weight_of(distance) >= min_p && distance < INFINITY) {
      const float noise = draw_math::gumbel_of(row.seed, row.position, id_of(token));
      best = max(best, ranked(draw_math::score_below(noise, distance), id_of(token)));
    }
    before += masses[j];
  }
  return block_reduce<true>(best, memory.reduce);
}

// A team of blocks per row, of which the first does whatever one can.
__global__ void __launch_bounds__(kResolveThreads) resolve_kernel(Args a, int team_size) {
  __shared__ ResolveMemory memory;
  const int r = static_cast<int>(blockIdx.x) / team_size;
  const RowTeam team(static_cast<int>(blockIdx.x) % team_size, team_size, a.vocab);
  const Row row(a, r, false);
  if (row.mode == Mode::kFilter) {
    const float highest = highest_logit(row, a.chunks, &memory.highest);
    if (isfinite(highest)) {
      const bool from_list = __ldcg(&a.scratch[r].last) >= 0;
      if (from_list && team.rank != 0) return;
      const Ranked best = from_list ? draw_from_list(a, r, row, highest, memory)
                                    : draw_from_row(a, r, row, team, highest, memory);
      if (threadIdx.x == 0 && team.rank == 0) store_token(a.rows, r, best);
      return;
    }
  }
  if (team.rank != 0 || threadIdx.x >= 32) return;
  const Ranked best = best_of_chunks(row, a.chunks);
  if (threadIdx.x == 0) store_token(a.rows, r, best);
}

void launch_resolve(const LaunchContext& ctx, const Args& a, int rows) {
  int team = has_clusters() ? kMaxTeam : 1;
  while (team > 1 && rows * team > 2 * device_limits().num_sms) team /= 2;  // of which two are there at once
  cudaLaunchAttribute in_clusters = {};
  in_clusters.id = cudaLaunchAttributeClusterDimension;
  in_clusters.val.clusterDim = {static_cast<unsigned>(team), 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(rows * team));
  config.blockDim = dim3(kResolveThreads);
  config.stream = stream_of(ctx);
  config.attrs = &in_clusters;
  config.numAttrs = team > 1 ? 1 : 0;
  cudaLaunchKernelEx(&config, resolve_kernel, a, team);
}

}  // namespace

size_t sampling_workspace_bytes(int64_t rows, int64_t) {
  return static_cast<size_t>(rows) * sizeof(RowScratch);
}

void sample(const LaunchContext& ctx, const SamplingArgs& args) {
  const int rows = static_cast<int>(args.logits.shape[0]), vocab = static_cast<int>(args.logits.shape[1]);
  if (rows == 0 || vocab == 0) return;
  Args a = {.rows = args,
            .scratch = static_cast<RowScratch*>(ctx.workspace),
            .logits = args.logits.as<float>(),
            .stride = args.logits.stride[0],
            .vocab = vocab,
            .filters = args.any_filter && !args.all_greedy};
  // Enough blocks for every processor several times over, so that the last ones to finish cost little.
  const int wanted = ceil_div(32 * device_limits().num_sms, rows);
  const int chunks = std::clamp(wanted, 1, std::min(kMaxChunks, ceil_div(vocab, kChunkAlign)));
  a.chunk = ceil_div(ceil_div(vocab, chunks), kChunkAlign) * kChunkAlign;
  a.chunks = ceil_div(vocab, a.chunk);
  const dim3 grid(static_cast<unsigned>(a.chunks), static_cast<unsigned>(rows));
  const cudaStream_t stream = stream_of(ctx);
  if ((ctx.into != nullptr || args.best != nullptr) && a.filters)
    return note_error(ctx, "sample", "",
                      "with filters it is no one kernel, of a graph or of a part of the vocabulary");
  launch_or_set(ctx, args.all_greedy ? scan_kernel<true> : scan_kernel<false>, grid, kThreads, a);
  if (a.filters) {
    histogram_kernel<<<grid, kThreads, 0, stream>>>(a);
    collect_kernel<<<grid, kThreads, 0, stream>>>(a);
    launch_resolve(ctx, a, rows);
  }
  check_launch(ctx, "sample", args.logits);
}

}  // namespace quire::cuda
