#include <filesystem>

#include "executor/executor.h"
#include "quire/engine_config.h"
#include "quire/error.h"
#include "quire/model_directory.h"
#include "quire/weights.h"
#include "util/str.h"

namespace quire {

std::vector<std::string> pack_weights(const EngineConfig& config, const std::string& directory) {
  config.validate();
  if (config.load_format == "dummy")
    throw InvalidArgument("load_format 'dummy': there are no weights to pack; use 'auto'");
  if (std::error_code error; !std::filesystem::is_directory(directory, error))
    throw InvalidArgument(str("directory '", directory, "' is none; make it first"));
  return pack_ranks(locate_model(config), directory);
}

}  // namespace quire
