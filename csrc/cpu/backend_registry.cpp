#include "quire/kernels/backend_registry.h"

#include <array>
#include <cstdlib>

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

const KernelTable* find_kernel_table(std::string_view backend) {
  if (backend == "cuda") return cuda_kernel_table(0);
  if (backend != "cpu") return nullptr;
  const auto tables = cpu_kernel_tables();
  if (const char* wanted = std::getenv("QUIRE_CPU_ISA")) {
    for (const KernelTable* table : tables)
      if (std::string_view(table->variant) == wanted) return table;
  }
  return tables.front();
}

}  // namespace quire
