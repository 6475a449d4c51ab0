#include "layers/parameter.h"

#include "weights/convert.h"

namespace quire {
namespace {

constexpr float kDummyScale = 0.1F;

}  // namespace

Parameter::Parameter(BuildContext& build, const std::string& name, int64_t size, float dummy_center) {
  const DType dtype = build.dtype;
  const TensorView values = build.checkpoint.take(name, {size});
  view_ = {build.arena.allocate(static_cast<size_t>(size) * dtype_bytes(dtype)), dtype, size};
  if (build.loader.keeps(values)) return;
  if (values.data) {
    build.loader.load(view_.data, dtype, values);
    return;
  }
  build.loader.generate(view_.data, size, dtype_bytes(dtype),
                        [dtype, dummy_center](int64_t begin, int64_t end, std::byte* out) {
                          fill_dummy(out, dtype, begin, end - begin, dummy_center, kDummyScale, /*seed=*/0);
                        });
}

}  // namespace quire
