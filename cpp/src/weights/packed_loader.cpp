// Weights out of a packed file.
#include <algorithm>
#include <vector>

#include "quire/error.h"
#include "util/str.h"
#include "weights/packed_file.h"
#include "weights/weight_loader.h"

namespace quire {
namespace {

// While a model is built, all but what is computed is left alone: it is in the file, in the order of the
// arena's allocations.
class PackedLoader final : public WeightLoader {
 public:
  PackedLoader(std::shared_ptr<const PackedFile> file, const DeviceArena& arena, bool is_mapped,
               std::unique_ptr<WeightLoader> inner)
      : file_(std::move(file)), arena_(arena), is_mapped_(is_mapped), inner_(std::move(inner)) {}

  void load(void*, DType, TensorView) override {}
  void generate(void* to, int64_t rows, size_t row_bytes, RowWriter write) override {
    if (is_computed(to)) inner_->generate(to, rows, row_bytes, std::move(write));
  }
  void finish() override {
    check_sections(*file_, arena_);
    if (!is_mapped_) copy_sections();
    inner_->finish();
    file_->check_unchanged();
  }
  bool measuring() const override { return true; }

 private:
  bool is_computed(const void* address) const {
    const auto* at = static_cast<const std::byte*>(address);
    return std::ranges::any_of(arena_.allocations(), [at](const DeviceArena::Allocation& each) {
      return each.is_computed && at >= each.data && at < each.data + each.bytes;
    });
  }
  void copy_sections() {
    size_t section = 0;
    for (const DeviceArena::Allocation& each : arena_.allocations()) {
      if (each.is_computed) continue;
      const uint64_t begin = file_->begin_of(section++);
      inner_->generate(each.data, static_cast<int64_t>(each.bytes), 1,
                       [file = file_, begin](int64_t first, int64_t last, std::byte* out) {
                         file->read(begin + static_cast<uint64_t>(first),
                                    {out, static_cast<size_t>(last - first)});
                       });
    }
  }

  const std::shared_ptr<const PackedFile> file_;
  const DeviceArena& arena_;
  const bool is_mapped_;
  const std::unique_ptr<WeightLoader> inner_;
};

}  // namespace

std::unique_ptr<WeightLoader> make_packed_loader(std::shared_ptr<const PackedFile> file,
                                                 const DeviceArena& arena, bool is_mapped,
                                                 std::unique_ptr<WeightLoader> inner) {
  return std::make_unique<PackedLoader>(std::move(file), arena, is_mapped, std::move(inner));
}

}  // namespace quire
