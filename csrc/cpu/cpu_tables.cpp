// The tables of this machine's processor.
#include <array>

#include "quire/kernels/backend_registry.h"
#include "tables.h"

namespace quire {
namespace {

constexpr cpu::Isa kGeneric = {cpu::kGenericRows, cpu::kGenericSampling, cpu::kGenericMatmul};
constexpr KernelTable kGenericTable = cpu::make_table<kGeneric>("generic");

struct Tables {
  std::array<const KernelTable*, cpu::kMaxTables> tables{};
  size_t count = 0;

  Tables() {
    count = static_cast<size_t>(cpu::available_tables(tables.data()));
    tables[count++] = &kGenericTable;
  }
};

}  // namespace

std::span<const KernelTable* const> cpu_kernel_tables() {
  static const Tables tables;
  return {tables.tables.data(), tables.count};
}

}  // namespace quire
