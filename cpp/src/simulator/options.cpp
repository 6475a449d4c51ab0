#include "simulator/options.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string_view>
#include <thread>

#include "formats/json.h"
#include "simulator/workload.h"
#include "util/str.h"

namespace quire {
namespace {

constexpr int32_t kRouterChunk = 64;  // tokens, rounded up to whole blocks

// Sets `out` to a member, if it is there.
template <typename T>
void read_integer(const JsonNode& node, std::string_view key, int64_t min, int64_t max, T& out) {
  if (const auto member = node.find(key)) out = static_cast<T>(member->integer(min, max));
}

template <typename T>
void read_number(const JsonNode& node, std::string_view key, double min, double max, T& out) {
  const auto member = node.find(key);
  if (!member) return;
  const double value = member->json().is_number() ? member->json().get<double>() : std::nan("");
  if (!(value >= min && value <= max)) member->fail(str("must be a number from ", min, " to ", max));
  out = static_cast<T>(value);
}

void read_boolean(const JsonNode& node, std::string_view key, bool& out) { out = node.boolean_or(key, out); }

void read_engine(const JsonNode& node, SimulatedEngineConfig& engine) {
  node.allow_only({"max_model_len", "block_size", "num_gpu_blocks_override", "enable_prefix_caching",
                   "max_num_seqs", "max_num_batched_tokens", "enable_chunked_prefill",
                   "long_prefill_token_threshold", "scheduling_policy", "async_scheduling",
                   "max_queued_requests", "max_num_partial_prefills", "max_long_partial_prefills",
                   "scheduler_reserve_full_isl", "watermark"});
  SchedulerConfig& scheduler = engine.scheduler;
  read_integer(node, "max_model_len", 2, 1 << 24, scheduler.max_model_len);
  read_integer(node, "block_size", 1, 1 << 16, engine.block_size);
  read_integer(node, "num_gpu_blocks_override", 2, 1 << 26, engine.num_blocks);
  read_boolean(node, "enable_prefix_caching", scheduler.enable_prefix_caching);
  read_integer(node, "max_num_seqs", 1, 4096, scheduler.max_num_seqs);
  read_integer(node, "max_num_batched_tokens", 1, 1 << 20, scheduler.max_num_batched_tokens);
  read_boolean(node, "enable_chunked_prefill", scheduler.enable_chunked_prefill);
  read_integer(node, "long_prefill_token_threshold", 0, 1 << 20, scheduler.long_prefill_token_threshold);
  if (const auto policy = node.find("scheduling_policy")) scheduler.policy = policy->string();
  bool async_scheduling = false;
  read_boolean(node, "async_scheduling", async_scheduling);
  scheduler.max_in_flight_steps = async_scheduling ? 2 : 1;
  read_integer(node, "max_queued_requests", 0, INT32_MAX, engine.max_queued_requests);
  read_integer(node, "max_num_partial_prefills", 0, 4096, scheduler.max_num_partial_prefills);
  read_integer(node, "max_long_partial_prefills", 0, 4096, scheduler.max_long_partial_prefills);
  read_boolean(node, "scheduler_reserve_full_isl", scheduler.scheduler_reserve_full_isl);
  read_number(node, "watermark", 0, 0.99, scheduler.watermark);
}

void read_lengths(const JsonNode& node, const std::string& name, LengthDistribution& lengths) {
  read_number(node, name + "_median", 1, 1e7, lengths.median);
  read_number(node, name + "_sigma", 0, 10, lengths.sigma);
  read_integer(node, name + "_min", 1, 1 << 24, lengths.min);
  read_integer(node, name + "_max", 1, 1 << 24, lengths.max);
  if (lengths.min > lengths.max)
    node.fail(str(name, "_min ", lengths.min, " is above ", name, "_max ", lengths.max));
}

WorkloadOptions read_workload(const JsonNode& node) {
  node.allow_only({"num_requests", "rate", "prompt_median", "prompt_sigma", "prompt_min", "prompt_max",
                   "output_median", "output_sigma", "output_min", "output_max", "prefix_share",
                   "num_prefixes", "prefix_len"});
  WorkloadOptions workload;
  read_integer(node, "num_requests", 1, 1'000'000'000, workload.num_requests);
  read_number(node, "rate", 0, 1e9, workload.rate);
  read_lengths(node, "prompt", workload.prompt_len);
  read_lengths(node, "output", workload.output_len);
  read_number(node, "prefix_share", 0, 1, workload.prefix_share);
  read_integer(node, "num_prefixes", 1, 1 << 24, workload.num_prefixes);
  read_integer(node, "prefix_len", 1, 1 << 24, workload.prefix_len);
  return workload;
}

StepCostModel read_cost_model(const JsonNode& node) {
  node.allow_only(
      {"seconds_per_step", "seconds_per_token", "seconds_per_request", "seconds_per_context_token"});
  StepCostModel model;
  read_number(node, "seconds_per_step", 0, 1e6, model.seconds_per_step);
  read_number(node, "seconds_per_token", 0, 1e6, model.seconds_per_token);
  read_number(node, "seconds_per_request", 0, 1e6, model.seconds_per_request);
  read_number(node, "seconds_per_context_token", 0, 1e6, model.seconds_per_context_token);
  return model;
}

}  // namespace

SimulatorOptions parse_options(const std::string& options_json) {
  const Json json = parse_json(options_json, "options");
  const JsonNode node(json, "options");
  node.allow_only({"engine", "num_engines", "router", "max_load_factor", "workload", "calibration",
                   "cost_model", "host_seconds_per_step", "seed", "num_threads"});
  SimulatorOptions options;
  if (const auto engine = node.find("engine")) read_engine(*engine, options.engine);
  options.engine.scheduler.validate(options.engine.block_size);
  read_integer(node, "num_engines", 1, 1'000'000, options.num_engines);
  if (const auto router = node.find("router")) options.router.policy = router->string();
  read_number(node, "max_load_factor", 1, 1e9, options.router.max_load_factor);
  options.router.load_slack = options.engine.scheduler.max_num_batched_tokens;
  options.router.chunk_size =
      (kRouterChunk + options.engine.block_size - 1) / options.engine.block_size * options.engine.block_size;
  read_integer(node, "seed", 0, INT64_MAX, options.seed);

  const auto calibration = node.find("calibration");
  const auto cost_model = node.find("cost_model");
  if (calibration && cost_model) node.fail("has a calibration and a cost_model: give one of them");
  if (cost_model) {
    options.calibration.cost_model = read_cost_model(*cost_model);
    options.calibration.source = "given";
  } else {
    options.calibration = calibration
                              ? load_calibration(calibration->string())
                              : parse_calibration(default_calibration_table(), "the built-in calibration");
  }
  read_number(node, "host_seconds_per_step", 0, 1e6, options.calibration.cost_model.host_seconds_per_step);
  options.engine.cost_model = options.calibration.cost_model;

  options.num_threads = 0;
  read_integer(node, "num_threads", 0, 1024, options.num_threads);
  if (options.num_threads == 0)
    options.num_threads = std::max(static_cast<int32_t>(std::thread::hardware_concurrency()), 1);

  const auto workload = node.find("workload");
  if (workload && workload->json().is_string()) {
    options.trace = load_trace(workload->string());
  } else {
    options.trace = make_workload(workload ? read_workload(*workload) : WorkloadOptions{}, options.seed);
  }
  return options;
}

}  // namespace quire
