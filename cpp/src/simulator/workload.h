// Made-up workloads: Poisson arrivals, lengths like those of ShareGPT's conversations.
#pragma once

#include <cstdint>

#include "simulator/trace.h"

namespace quire {

// Log-normal: exp(normal(log(median), sigma)), rounded, cut off at both ends.
struct LengthDistribution {
  double median = 1.0;
  double sigma = 0.0;
  int32_t min = 1;
  int32_t max = 1;
};

struct WorkloadOptions {
  int64_t num_requests = 1000;
  double rate = 0.0;                                   // a second, for the whole fleet; 0: all at once
  LengthDistribution prompt_len{120.0, 1.2, 4, 1024};  // mean 216
  LengthDistribution output_len{140.0, 0.9, 1, 1024};  // mean 204
  double prefix_share = 0.0;                           // part of the requests that begin with a shared prefix
  int32_t num_prefixes = 16;                           // shared prefixes, all equally likely
  int32_t prefix_len = 256;  // tokens of a shared prefix; the prompt's own tokens follow it
};

// Depends on nothing but the options and the seed.
Trace make_workload(const WorkloadOptions& options, uint64_t seed);

}  // namespace quire
