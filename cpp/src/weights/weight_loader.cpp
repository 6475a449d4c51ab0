#include "weights/weight_loader.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "device/for_each_range.h"
#include "weights/checkpoint.h"
#include "weights/convert.h"

namespace quire {
namespace {

// Smaller tasks are not worth a hand-off.
constexpr int64_t kBytesPerThread = 64 << 10;

class HostLoader final : public WeightLoader {
 public:
  explicit HostLoader(const HostParallel* host) : host_(host) {}

  void load(void* to, DType dtype, TensorView from) override {
    const uint64_t seed = num_loads_++;
    if (keeps(from)) return;
    auto* out = static_cast<std::byte*>(to);
    const auto size = static_cast<int64_t>(dtype_bytes(dtype));
    if (!from.data) {
      const auto scale = static_cast<float>(1.0 / std::sqrt(from.shape[from.rank - 1]));
      for_each_range(from.numel(), size, [=](int64_t begin, int64_t end) {
        fill_dummy(out + begin * size, dtype, begin, end - begin, 0.0F, scale, seed);
      });
    } else if (is_transposed(from)) {
      load_transposed(to, dtype, from);
    } else if (from.rank == 1 || from.stride[0] == from.shape[1]) {
      const auto from_size = static_cast<int64_t>(dtype_bytes(from.dtype));
      for_each_range(from.numel(), size, [=, this](int64_t begin, int64_t end) {
        read_values(out + begin * size, dtype, from.as<std::byte>() + begin * from_size, from.dtype,
                    end - begin);
      });
    } else {
      const int64_t columns = from.shape[1];
      for_each_range(from.shape[0], columns * size, [=, this](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row)
          read_values(out + row * columns * size, dtype, from.at(row), from.dtype, columns);
      });
    }
  }

  void generate(void* to, int64_t rows, size_t row_bytes, RowWriter write) override {
    auto* out = static_cast<std::byte*>(to);
    for_each_range(rows, static_cast<int64_t>(row_bytes), [&](int64_t begin, int64_t end) {
      write(begin, end, out + static_cast<size_t>(begin) * row_bytes);
    });
  }

  void finish() override {}

 private:
  // Calls task(begin, end) for ranges that cover [0, count), at once where that pays.
  template <typename Task>
  void for_each_range(int64_t count, int64_t bytes_each, const Task& task) {
    quire::for_each_range(count * bytes_each < 2 * kBytesPerThread ? nullptr : host_, count, task);
  }

  const HostParallel* host_;
  uint64_t num_loads_ = 0;
};

class MeasuringLoader final : public WeightLoader {
 public:
  void load(void*, DType, TensorView) override {}
  void generate(void*, int64_t, size_t, RowWriter) override {}
  void finish() override {}
  bool measuring() const override { return true; }
};

class CheckingLoader final : public WeightLoader {
 public:
  explicit CheckingLoader(const HostParallel* host) : host_(host) {}

  void load(void*, DType, TensorView from) override {
    if (from.data == nullptr) return;
    if (is_transposed(from)) {
      quire::for_each_range(host_, from.shape[0], [&](int64_t begin, int64_t end) {
        constexpr int64_t kRows = 64;
        std::vector<std::byte> values(static_cast<size_t>(kRows * from.shape[1]) * dtype_bytes(from.dtype));
        for (int64_t row = begin; row < end; row += kRows)
          read_rows(values.data(), from.dtype, from.rows(row, std::min(kRows, end - row)));
      });
      return;
    }
    const bool is_dense = from.rank == 1 || from.stride[0] == from.shape[1];
    const int64_t rows = is_dense ? 1 : from.shape[0];
    const int64_t columns = is_dense ? from.numel() : from.shape[1];
    constexpr int64_t kAtOnce = 16384;
    const int64_t pieces = (columns + kAtOnce - 1) / kAtOnce;
    quire::for_each_range(host_, rows * pieces, [&](int64_t begin, int64_t end) {
      alignas(64) std::byte values[kAtOnce * sizeof(float)];
      for (int64_t i = begin; i < end; ++i) {
        const int64_t first = i % pieces * kAtOnce;
        const std::byte* row = is_dense ? from.as<std::byte>() : from.at(i / pieces);
        read_values(values, from.dtype, row + static_cast<size_t>(first) * dtype_bytes(from.dtype),
                    from.dtype, std::min(kAtOnce, columns - first));
      }
    });
  }
  void generate(void*, int64_t, size_t, RowWriter) override {}
  void finish() override {}
  bool measuring() const override { return true; }

 private:
  const HostParallel* host_;
};

}  // namespace

void WeightLoader::set_checkpoint(const Checkpoint* checkpoint) {
  checkpoint_ = checkpoint;
  keeps_missing_ = checkpoint != nullptr && checkpoint->allows_missing();
}

void WeightLoader::read_rows(void* out, DType dtype, const TensorView& from) const {
  if (is_transposed(from)) return read_transposed(out, dtype, from);
  auto* to = static_cast<std::byte*>(out);
  const int64_t columns = from.shape[from.rank - 1];
  if (from.rank == 1 || from.stride[0] == columns)
    return read_values(to, dtype, from.data, from.dtype, from.numel());
  for (int64_t row = 0; row < from.shape[0]; ++row, to += static_cast<size_t>(columns) * dtype_bytes(dtype))
    read_values(to, dtype, from.at(row), from.dtype, columns);
}

void WeightLoader::read_transposed(void* out, DType dtype, const TensorView& from) const {
  const int64_t rows = from.shape[0], columns = from.shape[1];
  const auto size = static_cast<int64_t>(dtype_bytes(dtype));
  const std::byte* source = from.as<std::byte>();
  // Of each column the values from the first of these rows to the last.
  const int64_t step = from.stride[0], span = rows == 0 ? 0 : (rows - 1) * step + 1;
  std::vector<std::byte> values(static_cast<size_t>(span * size));
  for (int64_t column = 0; column < columns; ++column) {
    read_values(values.data(), dtype, source, from.dtype, span);
    source += from.stride[1] * static_cast<int64_t>(dtype_bytes(from.dtype));
    auto* to = static_cast<std::byte*>(out) + column * size;
    for (int64_t row = 0; row < rows; ++row, to += columns * size)
      std::memcpy(to, values.data() + row * step * size, static_cast<size_t>(size));
  }
}

void WeightLoader::load_transposed(void* to, DType dtype, const TensorView& from) {
  generate(to, from.shape[0], static_cast<size_t>(from.shape[1]) * dtype_bytes(dtype),
           [=, this](int64_t begin, int64_t end, std::byte* out) {
             read_rows(out, dtype, from.rows(begin, end - begin));
           });
}

void WeightLoader::read_values(void* out, DType dtype, const void* from, DType from_dtype,
                               int64_t count) const {
  if (!checkpoint_) return convert(out, dtype, from, from_dtype, count);
  auto* to = static_cast<std::byte*>(out);
  const auto* source = static_cast<const std::byte*>(from);
  if (dtype == from_dtype) return checkpoint_->read(source, dtype, count, to);
  // Converted while they are in the first caches.
  constexpr int64_t kAtOnce = 16384;
  alignas(64) std::byte values[kAtOnce * sizeof(float)];
  for (int64_t done = 0; done < count; done += kAtOnce) {
    const int64_t n = std::min(kAtOnce, count - done);
    checkpoint_->read(source + static_cast<size_t>(done) * dtype_bytes(from_dtype), from_dtype, n, values);
    convert(to + static_cast<size_t>(done) * dtype_bytes(dtype), dtype, values, from_dtype, n);
  }
}

std::unique_ptr<WeightLoader> make_host_loader(const HostParallel* host) {
  return std::make_unique<HostLoader>(host);
}
std::unique_ptr<WeightLoader> make_measuring_loader() { return std::make_unique<MeasuringLoader>(); }

std::unique_ptr<WeightLoader> make_checking_loader(const HostParallel* host) {
  return std::make_unique<CheckingLoader>(host);
}

void load_zeros(WeightLoader& loader, void* to, int64_t rows, size_t row_bytes) {
  loader.generate(to, rows, row_bytes, [row_bytes](int64_t begin, int64_t end, std::byte* out) {
    std::memset(out, 0, static_cast<size_t>(end - begin) * row_bytes);
  });
}

TensorView transposed(TensorView view) {
  std::swap(view.shape[0], view.shape[1]);
  std::swap(view.stride[0], view.stride[1]);
  return view;
}

TensorView slice_rows(TensorView view, int64_t begin, int64_t count) {
  if (view.data) return view.rows(begin, count);
  view.shape[0] = count;
  return view;
}

TensorView slice_columns(TensorView view, int64_t begin, int64_t count) {
  if (view.data) return view.columns(begin, count);
  view.shape[view.rank - 1] = count;
  return view;
}

}  // namespace quire
