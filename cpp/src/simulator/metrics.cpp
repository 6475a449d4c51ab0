#include "simulator/metrics.h"

#include <algorithm>

namespace quire {

void Metrics::merge(const Metrics& other) {
  num_finished += other.num_finished;
  num_refused += other.num_refused;
  num_expired += other.num_expired;
  num_prompt_tokens += other.num_prompt_tokens;
  num_output_tokens += other.num_output_tokens;
  ttft.merge(other.ttft);
  itl.merge(other.itl);
  e2e.merge(other.e2e);
  queue_time.merge(other.queue_time);
  num_steps += other.num_steps;
  num_scheduled_tokens += other.num_scheduled_tokens;
  num_preemptions += other.num_preemptions;
  prefix_cache_queries += other.prefix_cache_queries;
  prefix_cache_hits += other.prefix_cache_hits;
  busy_ns += other.busy_ns;
  end_ns = std::max(end_ns, other.end_ns);
  used_blocks += other.used_blocks;
  used_slots += other.used_slots;
  wasted_slots += other.wasted_slots;
  running_reqs += other.running_reqs;
  contiguous_slots += other.contiguous_slots;
  contiguous_tokens += other.contiguous_tokens;
  peak_used_blocks = std::max(peak_used_blocks, other.peak_used_blocks);
  peak_running_reqs = std::max(peak_running_reqs, other.peak_running_reqs);
  num_engines += other.num_engines;
  most_requests = std::max(most_requests, other.most_requests);
  fewest_requests = std::min(fewest_requests, other.fewest_requests);
  most_tokens = std::max(most_tokens, other.most_tokens);
  fewest_tokens = std::min(fewest_tokens, other.fewest_tokens);
  timeline.merge(other.timeline);
}

}  // namespace quire
