#include "quire/kernels/backend_registry.h"

#include <cstdlib>

namespace quire {

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
