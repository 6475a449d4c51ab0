#include "layers/int8_linear_method.h"

#include <algorithm>

#include "layers/pack_rows.h"
#include "util/check.h"

namespace quire {
namespace {

// Four to a word, as bytes. A dummy's stay without data.
TensorView unpacked(TensorView words, int64_t rows, int64_t columns) {
  TensorView bytes(words.data, DType::kUInt8, rows, columns);
  bytes.stride[0] = words.shape[1] * 4;
  return bytes;
}

class Int8LinearMethod final : public LinearMethod {
 public:
  Int8LinearMethod(BuildContext& build, const LinearShard& shard, const Int8Storage& storage) {
    const int64_t n = shard.n(), k = shard.k;
    const bool packs = build.ops.linear_pack_rows != nullptr;
    const size_t bytes =
        packs ? build.ops.linear_weight_bytes(n, k, DType::kInt8) : static_cast<size_t>(n * k);
    weight_ = {build.arena.allocate(bytes), n, k, build.dtype, packs, nullptr, nullptr};
    auto* scales = allocate_floats(build, n);
    auto* zero_points = storage.has_zero_points ? allocate_floats(build, n) : nullptr;
    weight_.scales = scales;
    weight_.zero_points = zero_points;
    build.workspace_bytes =
        std::max(build.workspace_bytes, build.ops.linear_workspace_bytes(shard.max_rows, weight_));
    int64_t row = 0;
    for (const LinearPart& part : shard.parts) {
      const TensorView all = take_weight(build, part, shard.total_k, storage.packed);
      const TensorView scale =
          build.checkpoint.take(part.name + ".weight_scale", {part.total_rows, 1}, kFloatTypes);
      const TensorView zero_point =
          storage.has_zero_points ? take_zero_points(build, part, storage.packed) : TensorView();
      if (part.num_rows > 0) {
        const TensorView rows = slice_rows(all, part.row_begin, part.num_rows);
        load_rows(build, row, slice_columns(rows, shard.k_begin, shard.k));
        load_floats(build, scales + row, slice_rows(scale, part.row_begin, part.num_rows), kDummyScale);
        if (zero_points != nullptr) {
          load_floats(build, zero_points + row, slice_rows(zero_point, part.row_begin, part.num_rows), 0.0F);
        }
      }
      row += part.num_rows;
    }
    if (shard.num_zero_rows > 0) {
      // A scale of 0 makes a row 0, whatever else it holds.
      load_zeros(build.loader, scales + row, shard.num_zero_rows, sizeof(float));
      if (zero_points != nullptr)
        load_zeros(build.loader, zero_points + row, shard.num_zero_rows, sizeof(float));
      if (!packs) load_zeros(build.loader, plain_row(row), shard.num_zero_rows, static_cast<size_t>(k));
    }
  }

  void apply(const ForwardContext& ctx, TensorView out, TensorView x, const float* bias) const override {
    QUIRE_CHECK(x.shape[1] == weight_.k && out.shape[1] == weight_.n && x.shape[0] == out.shape[0]);
    ctx.ops.linear(ctx.launch, out, x, weight_, bias);
  }

 protected:
  const LinearWeight* weight() const override { return &weight_; }

 private:
  static constexpr std::initializer_list<DType> kFloatTypes = {DType::kFloat32, DType::kFloat16,
                                                               DType::kBFloat16};
  // A dummy's values are uniform in int8, and its products are to keep the inputs' magnitude.
  static constexpr float kDummyScale = 0.0135F;

  static float* allocate_floats(BuildContext& build, int64_t count) {
    return reinterpret_cast<float*>(build.arena.allocate(static_cast<size_t>(count) * sizeof(float)));
  }

  static TensorView take_weight(BuildContext& build, const LinearPart& part, int64_t columns, bool packed) {
    if (!packed) {
      return build.checkpoint.take(part.name + ".weight", {part.total_rows, columns}, {DType::kInt8});
    }
    const TensorView shape = build.checkpoint.take(part.name + ".weight_shape", {2}, {DType::kInt64});
    if (shape.data != nullptr) {
      int64_t found[2];
      build.checkpoint.read(shape.as<std::byte>(), DType::kInt64, 2, reinterpret_cast<std::byte*>(found));
      if (found[0] != part.total_rows || found[1] != columns) {
        throw InvalidArgument(str(build.checkpoint.directory(), ": tensor '", part.name,
                                  ".weight_shape' says [", found[0], ", ", found[1],
                                  "], the config asks for [", part.total_rows, ", ", columns, "]"));
      }
    }
    const TensorView words = build.checkpoint.take(part.name + ".weight_packed",
                                                   {part.total_rows, (columns + 3) / 4}, {DType::kInt32});
    return unpacked(words, part.total_rows, columns);
  }

  static TensorView take_zero_points(BuildContext& build, const LinearPart& part, bool packed) {
    const std::string name = part.name + ".weight_zero_point";
    if (!packed) return build.checkpoint.take(name, {part.total_rows, 1}, {DType::kInt8});
    const TensorView words = build.checkpoint.take(name, {(part.total_rows + 3) / 4, 1}, {DType::kInt32});
    return TensorView(words.data, DType::kUInt8, part.total_rows, 1);
  }

  std::byte* plain_row(int64_t row) const { return static_cast<std::byte*>(weight_.data) + row * weight_.k; }

  // Float32 of one value a row.
  static void load_floats(BuildContext& build, float* to, const TensorView& from, float dummy) {
    if (build.loader.keeps(from)) return;
    if (from.data != nullptr) return build.loader.load(to, DType::kFloat32, from);
    build.loader.generate(to, from.shape[0], sizeof(float),
                          [dummy](int64_t begin, int64_t end, std::byte* out) {
                            std::fill_n(reinterpret_cast<float*>(out), end - begin, dummy);
                          });
  }

  void load_rows(BuildContext& build, int64_t row_begin, const TensorView& rows) {
    if (build.loader.keeps(rows)) return;
    if (!weight_.packed) {
      if (rows.data != nullptr) return build.loader.load(plain_row(row_begin), DType::kInt8, rows);
      return build.loader.generate(plain_row(row_begin), rows.shape[0], static_cast<size_t>(weight_.k),
                                   [k = weight_.k](int64_t begin, int64_t end, std::byte* out) {
                                     fill_dummy_rows(out, begin, end, k);
                                   });
    }
    if (build.loader.measuring()) return build.loader.load(weight_.data, DType::kInt8, rows);
    pack_rows(build, weight_, row_begin, rows.shape[0], DType::kInt8,
              [&](std::byte* out, int64_t row, int64_t count) {
                if (rows.data != nullptr) {
                  build.loader.read_rows(out, DType::kInt8, rows.rows(row, count));
                } else {
                  fill_dummy_rows(out, row, row + count, weight_.k);
                }
              });
  }

  // A function of the place.
  static void fill_dummy_rows(std::byte* out, int64_t begin, int64_t end, int64_t k) {
    uint64_t state = 0x9E3779B97F4A7C15 * static_cast<uint64_t>(begin + 1);
    for (int64_t i = 0; i < (end - begin) * k; ++i) {
      if (i % k == 0) state = 0x9E3779B97F4A7C15 * static_cast<uint64_t>(begin + i / k + 1);
      state = state * 6364136223846793005 + 1442695040888963407;  // Knuth's linear congruential generator
      out[i] = static_cast<std::byte>(state >> 56);
    }
  }

  LinearWeight weight_;
};

}  // namespace

std::unique_ptr<LinearMethod> make_int8_linear_method(BuildContext& build, const LinearShard& shard,
                                                      const Int8Storage& storage) {
  return std::make_unique<Int8LinearMethod>(build, shard, storage);
}

}  // namespace quire
