// Which instruction sets this x86-64 processor and operating system offer.
#include <sys/syscall.h>
#include <unistd.h>

#include "tables.h"

namespace quire::cpu {
namespace {

constexpr Isa kAvx2 = {kAvx2Rows, kAvx2Sampling, kAvx2Matmul};
constexpr Isa kAvx512 = {kAvx512Rows, kAvx512Sampling, kAvx512Matmul};
constexpr Isa kAmx = {kAvx512Rows, kAvx512Sampling, kAmxMatmul};

constexpr KernelTable kAvx2Table = make_table<kAvx2>("avx2");
constexpr KernelTable kAvx512Table = make_table<kAvx512>("avx512");
constexpr KernelTable kAmxTable = make_table<kAmx>("amx");

// __builtin_cpu_supports also asks whether the operating system saves the registers.
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}

bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bf16");
}

// Leaf 7: AMX-BF16 is bit 22 of EDX, AMX-TILE bit 24. gcc 12's __builtin_cpu_supports knows neither.
bool has_amx() {
  unsigned a = 7, b = 0, c = 0, d = 0;
  __asm__("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
  if ((d >> 22 & 1) == 0 || (d >> 24 & 1) == 0) return false;
  // The kernel hands out tile registers on request, once per process; it refuses when a thread's
  // alternate signal stack is too small to save them.
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

}  // namespace

int available_tables(const KernelTable** tables) {
  int count = 0;
  if (has_avx512() && has_amx()) tables[count++] = &kAmxTable;
  if (has_avx512()) tables[count++] = &kAvx512Table;
  if (has_avx2()) tables[count++] = &kAvx2Table;
  return count;
}

}  // namespace quire::cpu
