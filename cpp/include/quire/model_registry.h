// Which architectures an engine can run, and the plugin libraries that more come from.
//
// Models are named by files that somebody else has written; libraries are code. No checkpoint, request or
// recording can name a library: only EngineConfig::plugins, and whoever calls load_plugin.
#pragma once

#include <string>
#include <vector>

#include "quire/export.h"

namespace quire {

// The names that config.json's "architectures" may have, in alphabetical order, those of the plugins that
// have been loaded among them. Thread-safe.
QUIRE_API std::vector<std::string> get_supported_archs();

// Loads a library that quire_add_model_plugin (CMake, find_package(quire)) has built, for the rest of the
// process, and returns the architectures that it brings; a path that was loaded before is not looked at
// again. `path` has a '/', so that no other folders are searched. Throws InvalidArgument, with nothing
// changed, for what is no such library, one of another version, or one that brings nothing or what is there
// already. Thread-safe.
QUIRE_API std::vector<std::string> load_plugin(const std::string& path);

}  // namespace quire
