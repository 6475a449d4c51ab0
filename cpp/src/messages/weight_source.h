// Where new weights come from.
#pragma once

#include <span>
#include <string>

#include "quire/weights.h"

namespace quire {

// A directory or, if that is empty, tensors.
struct WeightSource {
  std::string directory;
  std::span<const WeightTensor> tensors;
  bool partial = false;

  bool is_directory() const { return !directory.empty(); }
};

}  // namespace quire
