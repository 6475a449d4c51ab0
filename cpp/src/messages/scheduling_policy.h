// The names of scheduling policies.
#pragma once

#include <cstdint>
#include <string>

namespace quire {

// See scheduler/request_queue.h for what each does.
enum class SchedulingPolicy : uint8_t { kFcfs, kPriority, kCacheAware, kFair };

// "fcfs", "priority", "cache_aware" or "fair". Throws InvalidArgument for another name.
SchedulingPolicy find_scheduling_policy(const std::string& name);

}  // namespace quire
