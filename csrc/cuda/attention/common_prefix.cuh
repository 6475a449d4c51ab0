// Keys in front that all decode rows of a batch share: cascade attention (Ye et al., 2024, "Cascade
// Inference").
//
// The rows' queries are as those of one prompt whose keys come all before it, so the kernel of prompts
// attends to them: it reads a key once for 128 queries where the decode kernel reads it for each row. What
// comes of it is a part like others for who writes a row's result (decode_warp.cuh).
#pragma once

#include "attention/prefill.cuh"
#include "common/launch.h"

namespace quire::cuda {

// An item is as many query rows as one of prefill, of a KV head, and a part of the keys. All are as long, so
// blocks take them in turn.
class CommonPrefixItems {
 public:
  static constexpr int kBlocks = 1;
  static constexpr bool kParts = true;

  __device__ __forceinline__ explicit CommonPrefixItems(const AttentionParams& p)
      : tokens_(__ldcg(&p.plan->common_tokens)),
        parts_(__ldcg(&p.plan->common_parts)),
        query_tiles_(ceil_div(p.num_decode_rows * p.num_queries_per_kv, p.prefill_rows)) {}

  // The next one; false when there are no more.
  __device__ __forceinline__ bool ask(const AttentionParams& p, PrefillItem& item) {
    const int index = static_cast<int>(blockIdx.x + turn_++ * gridDim.x);
    if (index >= parts_ * query_tiles_ * p.num_kv_heads) return false;
    item.part = index % parts_;
    item.kv_head = index / parts_ % p.num_kv_heads;
    item.first = index / parts_ / p.num_kv_heads * p.prefill_rows;
    item.row = 0;  // anyone's
    item.query_begin = 0;
    item.query_len = p.num_decode_rows;
    item.count = min(p.prefill_rows, item.query_len * p.num_queries_per_kv - item.first);
    item.first_token = item.first / p.num_queries_per_kv;
    const int steps = tokens_ / kCommonTokens;
    item.low = steps * item.part / parts_ * kCommonTokens;
    item.seq_len = steps * (item.part + 1) / parts_ * kCommonTokens;
    item.first_position = item.last_position = item.seq_len - 1;
    return true;
  }

 private:
  int tokens_, parts_, query_tiles_;
  unsigned turn_ = 0;
};

}  // namespace quire::cuda
