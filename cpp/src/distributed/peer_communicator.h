// Ranks that have a device each and are threads of one process.
#pragma once

#include <chrono>
#include <memory>
#include <span>
#include <vector>

#include "distributed/communicator.h"
#include "quire/kernels/device_runtime.h"
#include "quire/kernels/ops.h"

namespace quire {

// Rank r computes on devices[r], whose kernels read the memory of all the others: an exchange is one kernel,
// and waits on the device. A rank that waits longer than `max_wait` for another aborts the group. The group's
// memory goes with the last of its ranks. Throws InvalidArgument when there are more devices than `ops` can
// serve or one of them cannot reach another, ResourceExhausted when one has no memory left. `runtime` and
// `ops` live longer.
std::vector<std::unique_ptr<Communicator>> make_peer_communicators(
    const DeviceRuntime& runtime, const KernelTable& ops, std::span<const int32_t> devices,
    std::chrono::nanoseconds max_wait = std::chrono::seconds(60));

}  // namespace quire
