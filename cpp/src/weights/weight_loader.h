// How a model's parameters get from the checkpoint to where they will be used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "quire/export.h"
#include "quire/kernels/device_runtime.h"
#include "quire/kernels/ops.h"
#include "quire/kernels/tensor_view.h"

namespace quire {
class PackedFile;  // not for plugins
}  // namespace quire

namespace quire QUIRE_MODEL_API {

class Checkpoint;
class DeviceArena;

// Layers hand it one tensor after the other while a model is built. Used on one thread.
class WeightLoader {
 public:
  // Writes rows [begin, end) of a table to `out`, which is host memory and holds those rows only. May be
  // called on any thread, for several ranges at once.
  using RowWriter = std::function<void(int64_t begin, int64_t end, std::byte* out)>;

  virtual ~WeightLoader() = default;

  // Tensors that `load` is given from now on are read through this checkpoint, until `finish`. Null, as at
  // first: they are plain memory.
  void set_checkpoint(const Checkpoint* checkpoint);
  // Whether what this tensor would be written to stays as it is: its checkpoint may do without it, and does.
  bool keeps(const TensorView& from) const { return keeps_missing_ && from.data == nullptr; }

  // Writes a dense tensor of `dtype` and of `from`'s shape at `to`, in the backend's memory, converted as
  // weights/convert.h says.
  //   from [N] or [rows, columns] in host memory; rows may be strided, or `transposed`; read until `finish`
  // Without data (load_format "dummy") the values are uniform in [-1, 1) / sqrt(columns), so that a row's
  // product with a vector keeps its magnitude: a function of the shape, the place of this call among the
  // loader's and the kind of loader.
  virtual void load(void* to, DType dtype, TensorView from) = 0;

  // Reads a tensor that has data into host memory; done when it returns. Thread-safe.
  void read_rows(void* out, DType dtype, const TensorView& from) const;

  // Loads values that are computed: `rows` rows of `row_bytes` each, dense.
  virtual void generate(void* to, int64_t rows, size_t row_bytes, RowWriter write) = 0;

  // Returns when everything is where it belongs. `load` or this throws what went wrong: InternalError,
  // ResourceExhausted when memory was refused, InvalidArgument for a file that cannot be read and
  // for a weight of it that is infinite or NaN.
  virtual void finish() = 0;

  // Whether what is asked for is not written: it is nobody's memory, or is written otherwise.
  virtual bool measuring() const { return false; }

 protected:
  // Writes `count` values at `out` as `dtype`. Thread-safe.
  void read_values(void* out, DType dtype, const void* from, DType from_dtype, int64_t count) const;
  // `load` of a tensor that is transposed.
  void load_transposed(void* to, DType dtype, const TensorView& from);

 private:
  void read_transposed(void* out, DType dtype, const TensorView& from) const;

  const Checkpoint* checkpoint_ = nullptr;
  bool keeps_missing_ = false;
};

// Converts in place, on the threads that `host` lends (null: the caller's).
std::unique_ptr<WeightLoader> make_host_loader(const HostParallel* host = nullptr);

// Does nothing.
std::unique_ptr<WeightLoader> make_measuring_loader();
// Writes nothing either, but reads all that a loader would read, and throws what that would throw.
std::unique_ptr<WeightLoader> make_checking_loader(const HostParallel* host = nullptr);

// How a device's loader works. The device's memory holds the same in the end whatever these are.
struct DeviceLoaderOptions {
  int32_t max_threads = 12;
  // Pinned memory: chunks of so many bytes, each copied at once where all of it goes to one place, and pinned
  // when it is first needed. Copies of 8 MiB run at 98 % of the rate of 64 MiB, those of 2 MiB at 90 %
  // (H200). There may be so many chunks that one is filled and two wait while one is copied, and so few that
  // all stay in the CPU's last cache.
  size_t chunk_bytes = size_t{8} << 20;
  int32_t num_chunks = 4;
  // What one thread fills at a time, at most a chunk: so little that all threads work on one chunk or two.
  size_t piece_bytes = size_t{1} << 20;
};

// Streams through pinned memory: a few threads convert into chunks of it while others are being copied. Dummy
// values are made on the device, with `ops`. A row of `generate` has to fit into a chunk. Throws
// InternalError when the device fails. `runtime` and `ops` live longer; so does the memory that it writes to.
std::unique_ptr<WeightLoader> make_device_loader(const DeviceRuntime& runtime, int32_t device,
                                                 const KernelTable& ops,
                                                 const DeviceLoaderOptions& options = {});

// For a model whose arena is `arena`: what is not computed comes from the file, at `finish`, or is there
// already when the file is mapped. The rest goes through `inner`, which writes to the arena's kind of memory.
// Throws as check_sections and PackedFile::read.
std::unique_ptr<WeightLoader> make_packed_loader(std::shared_ptr<const PackedFile> file,
                                                 const DeviceArena& arena, bool is_mapped,
                                                 std::unique_ptr<WeightLoader> inner);

// Rows of zeros, through `generate`.
void load_zeros(WeightLoader& loader, void* to, int64_t rows, size_t row_bytes);

// view.rows(...) and view.columns(...) for tensors that may have no data, and then stay without.
TensorView slice_rows(TensorView view, int64_t begin, int64_t count);
TensorView slice_columns(TensorView view, int64_t begin, int64_t count);
// [columns, rows], in no memory of its own.
TensorView transposed(TensorView view);
inline bool is_transposed(const TensorView& view) { return view.rank == 2 && view.stride[1] != 1; }

}  // namespace quire
