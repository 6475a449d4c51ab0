// Bytes choose a configuration and then operations on a scheduler; what must hold is checked after each.
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "scheduler/scheduler_checker.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const uint8_t* const end = data + (size < 2000 ? size : 2000);
  quire::SchedulerChecker checker([&data, end](uint32_t limit) { return data == end ? 0 : *data++ % limit; });
  try {
    while (data != end) checker.operate();
    checker.finish();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n%s\n", error.what(), checker.describe().c_str());
    std::abort();
  }
  return 0;
}
