// Rows with too many likely tokens for a list: flat or tied logits.
#pragma once

#include "common/row_select.cuh"
#include "sampling/row.cuh"

namespace quire::cuda::sampling {

// Shared memory of a block that decides on a token.
struct ResolveMemory {
  union {
    Ranked list[kListSize];
    SelectMemory select;
  };
  Ranked reduce[32];
  Ranked exchange;
  float highest;
};

// A row that a team goes through, with what its filters compare with.
struct FlatRow {
  const Row& row;
  const RowTeam& team;
  float highest, min_p;
  ResolveMemory& memory;

  __device__ __forceinline__ Ranked mass(float x) const {
    return mass_of(distance_of(highest, x, row.scale), min_p);
  }

  // The token drawn from those of at least `bound`; 0 if there are none.
  __device__ Ranked draw(Ranked bound) const {
    Ranked best = 0;
    for_each_four(row.logits, team.begin, team.end, [&](int first, float4 v) {
      const draw_math::Words words =
          draw_math::words_of_group(row.seed, row.position, static_cast<uint32_t>(first) / 4);
      const float logits[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const auto id = static_cast<uint32_t>(first + j);
        const float x = logits[j], distance = distance_of(highest, x, row.scale);
        if (first + j >= team.end || !(distance < INFINITY) || weight_of(distance) < min_p ||
            ranked(x, id) < bound)
          continue;
        best = max(best, ranked(draw_math::score_below(draw_math::gumbel(words.at[j]), distance), id));
      }
    });
    return team.reduce<true>(best, memory.reduce, memory.exchange);
  }

  // Of the tokens of at least `bound`.
  __device__ Ranked mass_from(Ranked bound) const {
    Ranked sum = 0;
    for_each_logit(row.logits, team.begin, team.end, [&](int i, float x) {
      if (ranked(x, static_cast<uint32_t>(i)) >= bound) sum += mass(x);
    });
    return team.reduce<false>(sum, memory.reduce, memory.exchange);
  }
};

// Draws from the row itself rather than from a list.
//
// The best score of all tokens is the best of those that top-p leaves, if it is one of these: the tokens
// above it then weigh too little. If it is none, those that are left are all above it, and the next draw is
// from what is. That takes 1 + ln(1 / top_p) draws on average; a row that has had kDraws is cut.
__device__ Ranked draw_from_row(const Args& a, int r, const Row& row, const RowTeam& team, float highest,
                                ResolveMemory& memory) {
  constexpr int kDraws = 4;
  const float top_p = a.rows.top_p[r];
  const FlatRow flat{row, team, highest, a.rows.min_p[r], memory};
  const bool has_top_k = Row::has_top_k(a, r);
  Ranked bound = 0;
  if (has_top_k)
    bound = select_bound(
        team, row.logits, bound, static_cast<Ranked>(a.rows.top_k[r]), [](float) { return Ranked{1}; },
        memory.select);
  if (top_p >= 1.0F) return flat.draw(bound);
  const Ranked total = has_top_k ? flat.mass_from(bound) : __ldcg(&a.scratch[r].total);
  const auto target =
      max(static_cast<Ranked>(ceil(static_cast<double>(top_p) * static_cast<double>(total))), Ranked{1});
  for (int i = 0; i < kDraws; ++i) {
    const Ranked drawn = flat.draw(bound);
    if (drawn == 0) return drawn;
    const uint32_t id = id_of(drawn);
    const Ranked above = ranked(__ldg(row.logits + id), id) + 1;
    if (flat.mass_from(above) < target) return drawn;
    bound = above;
  }
  return flat.draw(
      select_bound(team, row.logits, bound, target, [&](float x) { return flat.mass(x); }, memory.select));
}

}  // namespace quire::cuda::sampling
