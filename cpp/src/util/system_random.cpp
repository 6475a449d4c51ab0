#include "util/system_random.h"

#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "util/check.h"

namespace quire {

void fill_from_system(std::span<std::byte> out) {
  constexpr size_t kAtOnce = 256;  // what getentropy gives
  while (!out.empty()) {
    const size_t count = std::min(out.size(), kAtOnce);
    QUIRE_CHECK(getentropy(out.data(), count) == 0, "no random bytes: ", std::strerror(errno));
    out = out.subspan(count);
  }
}

}  // namespace quire
