// Small parameters, held in the model's dtype.
#pragma once

#include <cstdint>
#include <string>

#include "layers/context.h"
#include "quire/export.h"

namespace quire QUIRE_MODEL_API {

// A vector of the checkpoint in the backend's memory, converted to the model's dtype.
class Parameter {
 public:
  Parameter() = default;
  // The tensor `name` [size]. With load_format "dummy" its values lie close to `dummy_center`.
  Parameter(BuildContext& build, const std::string& name, int64_t size, float dummy_center = 0.0F);
  const TensorView& view() const { return view_; }

 private:
  TensorView view_;
};

}  // namespace quire
