#pragma once

#include <cstdint>
#include <vector>

#include "layers/context.h"
#include "quire/export.h"

namespace quire QUIRE_MODEL_API {

// A weight [n, k] of this rank, its elements in the model's dtype.
class DenseWeight {
 public:
  DenseWeight() = default;
  // Laid out as the backend's products like it; grows build.workspace_bytes by what products with up to
  // `max_rows` rows need.
  static DenseWeight for_products(BuildContext& build, int64_t n, int64_t k, int64_t max_rows);
  // Row-major, which is quicker to look rows up in.
  static DenseWeight for_lookups(BuildContext& build, int64_t n, int64_t k);

  // `count` weights for products, equal distances apart. They need no more scratch than the caller asks for.
  static std::vector<DenseWeight> stack(BuildContext& build, int64_t count, int64_t n, int64_t k);

  // Rows [row_begin, row_begin + rows.shape[0]), of any dtype that the loader reads. Disjoint, in any order.
  void load_rows(BuildContext& build, int64_t row_begin, TensorView rows);
  // Rows that no checkpoint has.
  void zero_rows(BuildContext& build, int64_t row_begin, int64_t num_rows);

  const LinearWeight& view() const { return weight_; }

 private:
  std::byte* row(int64_t index) const;
  void pack_dummy_rows(BuildContext& build, int64_t row_begin, const TensorView& rows);

  LinearWeight weight_;
};

}  // namespace quire
