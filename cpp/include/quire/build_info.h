// What this library was made of, and what of it this machine can use.
#pragma once

#include <string>
#include <vector>

#include "quire/export.h"

namespace quire {

struct BuildInfo {
  std::string compiler;            // "GCC 13.2.0"
  std::string build_type;          // "release", or "debug" where assertions are compiled
  bool has_cuda = false;           // kernels for CUDA devices were compiled
  std::string cuda_architectures;  // of that code, as CMake names them: "80-real,90a-real"
  int num_cuda_devices = 0;        // that there are; 0 without a driver
  std::vector<std::string>
      instruction_sets;         // "amx", "avx512", "avx2", "generic": what runs here, best first
  std::string instruction_set;  // the one that is used: the best, or what QUIRE_CPU_ISA names
};

// Thread-safe. Loads CUDA's driver, where there is one.
QUIRE_API BuildInfo build_info();

}  // namespace quire
