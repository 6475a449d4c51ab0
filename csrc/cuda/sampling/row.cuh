// A row of logits from which a token is drawn: what it asks for, what kernels leave for each other, and where
// its token goes.
#pragma once

#include "common/ranking.cuh"
#include "common/types.cuh"
#include "quire/kernels/draw_math.h"
#include "quire/kernels/ops.h"

namespace quire::cuda::sampling {

using draw_math::distance_of, draw_math::weight_of;

constexpr int kMaxChunks = 128;  // of a row
constexpr int kListSize = 4096;

// More than any logit's rank: the row holds a NaN.
constexpr Ranked kNotANumber = ~Ranked{0};

struct RowScratch {
  Ranked best[kMaxChunks];  // of each chunk
  uint32_t bins[kBins];
  Ranked total;    // of all weights
  uint32_t count;  // in `list`
  int32_t last;    // bin of the list; -1: it would be too long
  Ranked list[kListSize];
};

struct Args {
  SamplingArgs rows;
  RowScratch* scratch = nullptr;  // [R]; without filters [R][kMaxChunks] of Ranked alone
  float* logits = nullptr;
  int64_t stride = 0;
  int vocab = 0, chunk = 0, chunks = 0;
  bool filters = false;
};

enum class Mode { kGreedy, kDraw, kFilter };

struct Row {
  Mode mode = Mode::kGreedy;
  float scale = 1.0F;  // of logits
  const float* logits;
  Ranked* best;
  uint64_t seed = 0;
  int64_t position = 0;

  __device__ Row(const Args& a, int r, bool greedy)
      : logits(a.logits + r * a.stride),
        best(a.filters ? a.scratch[r].best : reinterpret_cast<Ranked*>(a.scratch) + int64_t{r} * kMaxChunks) {
    if (greedy) return;
    const float temperature = a.rows.temperature[r];
    if (draw_math::is_greedy(temperature)) return;
    scale = 1.0F / temperature;
    seed = a.rows.seed[r];
    position = a.rows.position[r];
    mode = a.filters && (has_top_k(a, r) || a.rows.top_p[r] < 1.0F || a.rows.min_p[r] > 0.0F) ? Mode::kFilter
                                                                                              : Mode::kDraw;
  }
  static __device__ bool has_top_k(const Args& a, int r) {
    return a.rows.top_k[r] > 0 && a.rows.top_k[r] < a.vocab;
  }
};

// What a token counts for top-p: nothing where min-p has dropped it.
__device__ __forceinline__ Ranked mass_of(float distance, float min_p) {
  const float weight = weight_of(distance);
  return weight >= min_p ? draw_math::mass_of(weight) : 0;
}

__device__ __forceinline__ int token_of(Ranked best) {
  const uint32_t id = id_of(best);
  return id > 0x7FFFFFFFU ? 0 : static_cast<int>(id);
}

__device__ __forceinline__ void store_token(const SamplingArgs& rows, int r, Ranked best) {
  const int token = token_of(best);
  rows.sampled_token_ids[r] = token;
  if (rows.host_token_ids != nullptr) {
    const int none = best == kNotANumber ? kNoToken : draw_math::kNoTokenLeft;
    rows.host_token_ids[r] = best == kNotANumber || best == 0 ? none : token;
  }
  if (rows.token_places != nullptr && rows.token_places[r] != nullptr) *rows.token_places[r] = token;
}

// The best of a row's chunks. One warp, on every lane.
__device__ __forceinline__ Ranked best_of_chunks(const Row& row, int chunks) {
  Ranked best = 0;
  for (int i = threadIdx.x % 32; i < chunks; i += 32) best = max(best, __ldcg(row.best + i));
  return warp_max(best);
}

}  // namespace quire::cuda::sampling
