#include <array>
#include <iomanip>
#include <sstream>
#include <utility>

#include "quire/memory_plan.h"
#include "util/gib_text.h"
#include "util/str.h"

namespace quire {
namespace {

std::array<std::pair<const char*, int64_t>, 8> items_of(const RankMemory& memory) {
  return {{{"weights", memory.weights},
           {"activations", memory.activations},
           {"workspace", memory.workspace},
           {"batch", memory.batch},
           {"adapters", memory.adapters},
           {"graphs", memory.graphs},
           {"exchange", memory.exchange},
           {"KV cache", memory.kv_cache}}};
}

}  // namespace

std::string memory_text(const RankMemory& memory) {
  std::string text;
  for (const auto& [name, bytes] : items_of(memory))
    if (bytes != 0) text += str(text.empty() ? "" : ", ", name, ' ', gib_text(bytes));
  return text;
}

std::string memory_table(const RankMemory& memory) {
  const int64_t total = memory.total();
  std::ostringstream text;
  const auto line = [&](const char* name, int64_t bytes) {
    const double share = total > 0 ? 100.0 * static_cast<double>(bytes) / static_cast<double>(total) : 0.0;
    text << "  " << std::left << std::setw(12) << name << std::right << std::setw(14) << gib_text(bytes)
         << std::setw(7) << std::fixed << std::setprecision(1) << share << " %";
  };
  for (const auto& [name, bytes] : items_of(memory)) {
    if (bytes == 0) continue;
    line(name, bytes);
    text << '\n';
  }
  line("in all", total);
  return text.str();
}

}  // namespace quire
