// Where a model's adapters are: what multi_lora.json lists, and what a control request may name.
#pragma once

#include <string>
#include <vector>

#include "quire/lora.h"

namespace quire::triton {

// Beside the model, in the version directory.
inline constexpr const char kMultiLoraFile[] = "multi_lora.json";

// Without symbolic links in it, or a slash at its end; it need not be there. Empty when it cannot be
// followed.
std::string real_path(const std::string& path);

// The adapters of a JSON object {"name": "path", ...}, in its order; `file` begins complaints. Throws
// InvalidArgument naming the entry.
std::vector<LoraRequest> parse_multi_lora(const std::string& json, const std::string& file);

// Those of a file. Paths are relative to its directory, and must be directories. Throws InvalidArgument
// naming the file and the entry.
std::vector<LoraRequest> read_multi_lora(const std::string& file);

// The directory that a control request means by `path`, as real_path has it. Relative paths start at `base`,
// which is such a path itself. `confined`: the directory and all in it must be inside of base. Throws
// InvalidArgument.
std::string find_lora(const std::string& path, const std::string& base, bool confined);

}  // namespace quire::triton
