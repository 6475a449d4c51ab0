// The two ends of a language model: ids to vectors, vectors to logits. The vocabulary is split over the
// ranks.
#pragma once

#include <memory>
#include <string>

#include "layers/dense_weight.h"
#include "layers/linear.h"
#include "quire/export.h"

namespace quire QUIRE_MODEL_API {

class VocabParallelEmbedding {
 public:
  // "<name>.weight" [vocab_size, hidden_size], never quantized. Without `for_logits` the rows are kept plain,
  // which is quicker to look up but cannot be multiplied with.
  VocabParallelEmbedding(BuildContext& build, const std::string& name, int64_t vocab_size,
                         int64_t hidden_size, bool for_logits);

  //   input_ids [T] int32, out [T, hidden_size]
  void forward(const ForwardContext& ctx, TensorView out, TensorView input_ids) const;

  // Logits with the same weight; needs for_logits. Those of the whole vocabulary are gathered on every rank;
  // of the rank's part alone nothing is exchanged.
  //   hidden [R, hidden_size], logits [R, vocab_size] or [R, the part's count] fp32, rows may be strided
  void compute_logits(const ForwardContext& ctx, TensorView logits, TensorView hidden) const;

 private:
  Shard shard_;
  DenseWeight table_;
};

// A head of its own.
class ParallelLMHead {
 public:
  // "<name>.weight" [vocab_size, hidden_size], or as the checkpoint's quantization has it.
  ParallelLMHead(BuildContext& build, const std::string& name, int64_t vocab_size, int64_t hidden_size);

  // As VocabParallelEmbedding's.
  void compute_logits(const ForwardContext& ctx, TensorView logits, TensorView hidden) const;

 private:
  Shard shard_;
  std::unique_ptr<LinearMethod> method_;
};

}  // namespace quire
