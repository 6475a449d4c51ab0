#pragma once

#include <cstdint>
#include <string>

#include "layers/dense_weight.h"
#include "quire/export.h"

namespace quire QUIRE_MODEL_API {

// A vector for each position, added to the embedding of its token (Vaswani et al., 2017).
class LearnedPositions {
 public:
  // "<name>.weight" [first + num_positions, hidden_size]; position 0 has row `first`. Throws InvalidArgument
  // when build.max_model_len needs more positions.
  LearnedPositions(BuildContext& build, const std::string& name, int32_t num_positions, int32_t hidden_size,
                   int32_t first = 0);

  // x += the vectors.   x [T, hidden_size], positions [T] int32
  void add_to(const ForwardContext& ctx, TensorView x, TensorView positions) const;

 private:
  DenseWeight table_;
  int32_t first_;
};

}  // namespace quire
