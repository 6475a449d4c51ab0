// Where machine code for given CUDA architectures runs.
#pragma once

#include <string_view>

namespace quire::cuda {

// Whether code for one architecture, as in CMAKE_CUDA_ARCHITECTURES ("80-real", "90a", "89-virtual"), runs on
// a device of that compute capability (90 for 9.0). Machine code ("-real") runs on later minor versions of
// its major version; PTX ("-virtual") on all later ones; no suffix means both. A number with an "a" is for
// that very capability alone, in machine code and PTX, and one with an "f" for its family.
constexpr bool architecture_runs_on(std::string_view architecture, int compute_capability) {
  int number = 0;
  size_t i = 0;
  for (; i < architecture.size() && architecture[i] >= '0' && architecture[i] <= '9' && number < 1000; ++i)
    number = 10 * number + (architecture[i] - '0');
  if (i == 0) return false;
  const std::string_view suffix = architecture.substr(i);
  const char specific = !suffix.empty() && (suffix[0] == 'a' || suffix[0] == 'f') ? suffix[0] : '\0';
  const std::string_view kind = suffix.substr(specific == '\0' ? 0 : 1);
  const bool has_ptx = kind.empty() || kind == "-virtual";
  if (!has_ptx && kind != "-real") return false;
  if (specific == 'a') return compute_capability == number;
  if (compute_capability < number) return false;
  return compute_capability / 10 == number / 10 || (has_ptx && specific == '\0');
}

// Whether code for any of `architectures`, with commas between them, runs there.
constexpr bool runs_on(std::string_view architectures, int compute_capability) {
  while (!architectures.empty()) {
    const std::string_view one = architectures.substr(0, architectures.find(','));
    if (architecture_runs_on(one, compute_capability)) return true;
    architectures.remove_prefix(one.size() == architectures.size() ? one.size() : one.size() + 1);
  }
  return false;
}

}  // namespace quire::cuda
