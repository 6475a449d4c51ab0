#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "layers/linear_method.h"

namespace quire {

// How a checkpoint stores an int8 linear: "<name>.<weight>", and "<name>.weight_scale" [rows, 1].
struct Int8Storage {
  // "weight" [rows, columns] of int8; or "weight_packed" [rows, columns / 4] of int32, each of them four
  // values plus 128, the first in the lowest byte.
  bool packed = false;
  // Zero points are "<name>.weight_zero_point", [rows, 1] of int8; packed, [rows / 4, 1] of int32.
  bool has_zero_points = false;

  bool operator==(const Int8Storage&) const = default;
};

// Weights stay int8, inputs have the model's dtype, products are scaled in fp32.
std::unique_ptr<LinearMethod> make_int8_linear_method(BuildContext& build, const LinearShard& shard,
                                                      const Int8Storage& storage);

}  // namespace quire
