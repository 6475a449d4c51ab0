#pragma once

#include <cstdint>
#include <string>

#include "formats/hf_config.h"
#include "quire/engine_config.h"
#include "worker/backend.h"

namespace quire {

// Writes the packed weights of one rank of config.tensor_parallel_size to a directory, and returns the file's
// path. All ranks of a device's are made on `backend`'s. Throws as Worker does for the model and the device,
// and as write_packed_file.
std::string pack_rank(const EngineConfig& config, const Backend& backend, const HfConfig& hf_config,
                      int32_t rank, int32_t num_threads, const std::string& directory);

}  // namespace quire
