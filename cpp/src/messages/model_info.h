// What the front end and the engine core need to know of a loaded model.
#pragma once

#include <cstdint>
#include <string>

#include "messages/archive.h"
#include "quire/memory_plan.h"

namespace quire {

struct ModelInfo {
  std::string architecture;
  int32_t vocab_size = 0;
  int32_t max_model_len = 0;
  int32_t max_num_seqs = 0;
  int32_t max_num_batched_tokens = 0;
  std::string dtype;
  std::string backend;           // "cpu (amx)"
  int64_t activation_bytes = 0;  // per rank
  RankMemory memory;             // once the KV cache is there; in no recording

  template <class A>
  void fields(A& a) {
    a(architecture, vocab_size, max_model_len, max_num_seqs, max_num_batched_tokens, dtype, backend,
      activation_bytes);
  }
};

}  // namespace quire
