// Copies of blocks, for forks and a KV connector, in order with a rank's kernels.
#pragma once

#include <memory>

#include "quire/kernels/device_runtime.h"
#include "quire/kv_connector.h"

namespace quire {

// On `stream` of a device, or, with a null `runtime`, at once in host memory. `runtime` lives longer.
std::unique_ptr<KVCopier> make_kv_copier(const DeviceRuntime* runtime, void* stream);

}  // namespace quire
