#include "simulator/workload.h"

#include <algorithm>
#include <cmath>

#include "simulator/random.h"
#include "util/check.h"

namespace quire {
namespace {

int32_t draw_length(const LengthDistribution& lengths, Random& random) {
  const double length = lengths.median * std::exp(lengths.sigma * random.normal());
  return static_cast<int32_t>(
      std::clamp(std::round(length), static_cast<double>(lengths.min), static_cast<double>(lengths.max)));
}

}  // namespace

Trace make_workload(const WorkloadOptions& options, uint64_t seed) {
  Random random(seed);
  Trace trace;
  trace.requests.resize(static_cast<size_t>(options.num_requests));
  for (int32_t i = 0; i < options.num_prefixes; ++i)
    trace.segments.push_back({random.next(), options.prefix_len});
  double seconds = 0.0;
  for (TraceRequest& request : trace.requests) {
    if (options.rate > 0) seconds += random.exponential(1.0 / options.rate);
    constexpr double kMaxSeconds = 1e8;
    if (seconds > kMaxSeconds) {
      throw InvalidArgument(str("rate ", options.rate, " brings ", options.num_requests,
                                " requests in more than 1e8 seconds; raise it"));
    }
    request.arrival_ns = static_cast<int64_t>(seconds * 1e9);
    request.prompt_len = draw_length(options.prompt_len, random);
    request.output_len = draw_length(options.output_len, random);
    if (random.uniform() <= options.prefix_share) {
      request.first_segment = static_cast<uint32_t>(random.below(trace.segments.size()));
      request.num_segments = 1;
      request.prompt_len += options.prefix_len;
    }
  }
  return trace;
}

}  // namespace quire
