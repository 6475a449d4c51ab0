// Replays scheduling traces through the Scheduler, without a model, and prints what it decided.
//
//   quire_trace_runner [TRACES]
//
// TRACES is a file of JSON lines, stdin by default; the same words as tests/conformance/vllm_oracle.py reads,
// and the same answers, so that the two can be compared line by line. A trace:
//
//   {"config": {"num_blocks": 15, "block_size": 4, "max_num_seqs": 4, "max_num_batched_tokens": 16,
//               "max_model_len": 32}}                      (one line)
//   {"add": {"id": 1, "prompt": [5, 6], "output": [9, 0], "max_tokens": 8}}
//   {"step": 3}
//   {"abort": 1}
//   {"end": true}                                          (runs until every request has ended)
//
// `output` is what the model samples; past its end it samples 1 + index % 7. Token 0 ends a request.
// `drafts`[i] is proposed once output i is known, and accepted as far as it equals the output. The answer has
// a line for every scheduled step, then one for the end; {"error": ...} in its place means that the scheduler
// broke a promise. A line's "rule" names a way in which vLLM is known to differ there, see compare.py.
//
// The config may also have: long_prefill_token_threshold, enable_chunked_prefill, enable_prefix_caching,
// policy, async_scheduling (two steps in flight), num_speculative_tokens, sliding_window, max_loras.
//
// A line that makes no sense ends the run, with its number, and exit status 1.
#include <algorithm>
#include <cstdio>
#include <deque>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "formats/json.h"
#include "kv_cache/kv_cache_planner.h"
#include "scheduler/scheduler.h"
#include "util/str.h"

namespace quire {
namespace {

constexpr int32_t kEosTokenId = 0;
constexpr int32_t kMaxStepsToEnd = 10'000;
constexpr int64_t kMaxCount = 1 << 24;  // of tokens, blocks or steps: beyond it a trace is a slip

int32_t count_or(const JsonNode& node, std::string_view key, int64_t min, int32_t absent) {
  const auto found = node.find(key);
  return found ? static_cast<int32_t>(found->integer(min, kMaxCount)) : absent;
}

std::vector<int32_t> token_ids(const JsonNode& node) {
  std::vector<int32_t> ids;
  for (const JsonNode& element : node.elements())
    ids.push_back(static_cast<int32_t>(element.integer(0, INT32_MAX)));
  return ids;
}

// [1, 2, 3]
template <typename Values>
std::string list(const Values& values) {
  std::string text = "[";
  for (const auto& value : values) text += (text.size() > 1 ? ", " : "") + std::to_string(value);
  return text + "]";
}

// The tokens that the pretended model gives a request.
struct Script {
  RequestId id = 0;
  int32_t num_prompt_tokens = 0;
  std::vector<int32_t> output;
  std::vector<std::vector<int32_t>> drafts;
  std::vector<int32_t> delivered;  // what came out of the scheduler

  int32_t sample(size_t index) const {
    return index < output.size() ? output[index] : 1 + static_cast<int32_t>(index % 7);
  }
};

// A step, and what to print about it once its result is in.
struct Step {
  SchedulerOutput scheduler_output;
  std::string line;  // up to what the result adds
  std::vector<RequestId> finished;
  int32_t num_free_blocks = 0;
  const char* rule = nullptr;  // why vLLM may schedule something else here
  bool done = false;
};

class Replay {
 public:
  explicit Replay(const JsonNode& config);

  // Appends the lines that are complete.
  void handle(const JsonNode& event, std::string& out);

 private:
  void add(const JsonNode& values);
  void abort(RequestId id);
  void step(std::string& out);
  bool schedule();
  const char* rule(const SchedulerOutput& scheduler_output) const;
  void follow(const SchedulerOutput& scheduler_output);
  void collect();
  void end(std::string& out);
  void print_done(std::string& out);

  int32_t num_speculative_tokens_ = 0;
  int32_t max_model_len_ = 0;
  size_t max_in_flight_steps_ = 1;
  std::unique_ptr<Scheduler> scheduler_;
  std::unordered_map<RequestId, Script> scripts_;
  std::vector<RequestId> ids_;  // in the order they were added
  std::deque<Step> unprinted_;
  size_t num_in_flight_ = 0;        // of unprinted_
  std::vector<RequestId> running_;  // in the order they began
  std::vector<std::string> finish_order_;
  bool has_passed_over_ = false;  // some request, whose adapter had no slot
  int32_t num_steps_ = 0;
  int32_t num_preemptions_ = 0;
};

Replay::Replay(const JsonNode& node) {
  node.allow_only({"num_blocks", "block_size", "max_num_seqs", "max_num_batched_tokens", "max_model_len",
                   "long_prefill_token_threshold", "enable_chunked_prefill", "enable_prefix_caching",
                   "policy", "async_scheduling", "num_speculative_tokens", "sliding_window", "max_loras"});
  const auto count = [&](std::string_view key) {
    return static_cast<int32_t>(node.at(key).integer(1, kMaxCount));
  };
  SchedulerConfig config;
  config.max_num_seqs = count("max_num_seqs");
  config.max_num_batched_tokens = count("max_num_batched_tokens");
  config.max_model_len = max_model_len_ = count("max_model_len");
  config.long_prefill_token_threshold = count_or(node, "long_prefill_token_threshold", 0, 0);
  config.enable_chunked_prefill = node.boolean_or("enable_chunked_prefill", true);
  config.enable_prefix_caching = node.boolean_or("enable_prefix_caching", true);
  if (const auto policy = node.find("policy")) config.policy = policy->string();
  if (node.boolean_or("async_scheduling", false)) config.max_in_flight_steps = 2;
  max_in_flight_steps_ = static_cast<size_t>(config.max_in_flight_steps);
  config.max_loras = count_or(node, "max_loras", 0, 0);
  num_speculative_tokens_ = count_or(node, "num_speculative_tokens", 0, 0);
  if (num_speculative_tokens_ > 0 && config.max_in_flight_steps > 1)
    node.fail("has speculative tokens, which are replayed in synchronous mode only");
  config.num_padding_drafts = num_speculative_tokens_;  // as vLLM does
  // Not SchedulerConfig::validate(): a trace may try what the engine refuses as pointless.

  KVCacheSpec layer;
  layer.block_size = count("block_size");
  layer.page_bytes = 1;
  if (const int32_t window = count_or(node, "sliding_window", 0, 0); window > 0) {
    layer.kind = KVCacheKind::kSlidingWindow;
    layer.sliding_window = window;
  }
  KVCacheDemand demand;
  demand.num_blocks = count("num_blocks");
  demand.max_model_len = max_model_len_;
  demand.max_tokens_in_flight = config.max_num_batched_tokens * config.max_in_flight_steps;
  scheduler_ = std::make_unique<Scheduler>(config, plan_kv_cache({layer}, demand));
}

void Replay::handle(const JsonNode& event, std::string& out) {
  event.allow_only({"add", "step", "abort", "end"});
  if (event.object().size() != 1) event.fail("must say one thing: add, step, abort or end");
  if (const auto request = event.find("add")) {
    add(*request);
  } else if (const auto id = event.find("abort")) {
    abort(static_cast<RequestId>(id->integer(0, INT64_MAX)));
  } else if (const auto count = event.find("step")) {
    for (int64_t left = count->integer(0, kMaxCount); left > 0; --left) step(out);
  } else {
    end(out);
  }
}

void Replay::add(const JsonNode& node) {
  node.allow_only({"id", "prompt", "output", "max_tokens", "priority", "cache_salt", "lora", "drafts"});
  EngineCoreRequest request;
  request.request_id = static_cast<RequestId>(node.at("id").integer(0, INT64_MAX));
  request.prompt_token_ids = token_ids(node.at("prompt"));
  const auto num_prompt_tokens = static_cast<int32_t>(request.prompt_token_ids->size());
  if (num_prompt_tokens < 1 || num_prompt_tokens >= max_model_len_) {
    node.at("prompt").fail(
        str("must have 1 to ", max_model_len_ - 1, " tokens: one less than max_model_len"));
  }
  request.sampling_params.edit().max_tokens =
      static_cast<int32_t>(node.at("max_tokens").integer(1, kMaxCount));
  request.eos_token_ids = {kEosTokenId};
  if (const auto priority = node.find("priority"))
    request.priority = static_cast<int32_t>(priority->integer(INT32_MIN, INT32_MAX));
  if (const auto salt = node.find("cache_salt")) request.cache_salt = salt->string();
  if (const int32_t lora = count_or(node, "lora", 0, 0); lora > 0) {
    request.lora_id = static_cast<LoraId>(lora);
    request.lora_name = str("lora ", lora);
  }
  request.arrival_time = static_cast<double>(ids_.size());

  Script script;
  script.id = request.request_id;
  script.num_prompt_tokens = num_prompt_tokens;
  if (const auto output = node.find("output")) script.output = token_ids(*output);
  if (const auto drafts = node.find("drafts")) {
    for (const JsonNode& element : drafts->elements()) {
      script.drafts.push_back(token_ids(element));
      if (script.drafts.back().size() > static_cast<size_t>(num_speculative_tokens_))
        script.drafts.back().resize(static_cast<size_t>(num_speculative_tokens_));
    }
  }
  if (scripts_.contains(script.id)) node.at("id").fail(str(script.id, " was used before in this trace"));
  scheduler_->add_request(std::move(request));
  ids_.push_back(script.id);
  scripts_.emplace(script.id, std::move(script));
}

void Replay::abort(RequestId id) {
  if (!scheduler_->finish_request(id, RequestStatus::kFinishedAborted)) return;
  std::erase(running_, id);
  finish_order_.push_back(str("[", id, ", \"abort\"]"));
}

// Schedules a step, and collects a result: when as many are in flight as may be, or nothing could be
// scheduled.
void Replay::step(std::string& out) {
  const bool launched = schedule();
  if (num_in_flight_ == max_in_flight_steps_ || (!launched && num_in_flight_ > 0)) collect();
  print_done(out);
}

// Returns false when there was nothing to compute; requests may have been preempted all the same.
bool Replay::schedule() {
  SchedulerOutput scheduler_output;
  const bool launched = scheduler_->schedule(scheduler_output);
  if (!launched && scheduler_output.preempted_req_ids.empty()) return false;
  num_preemptions_ += static_cast<int32_t>(scheduler_output.preempted_req_ids.size());

  std::string tokens, new_hits, resumed_hits;
  const auto append = [](std::string& text, RequestId id, int32_t value) {
    text += str(text.empty() ? "\"" : ", \"", id, "\": ", value);
  };
  for (const ScheduledRequest& scheduled : scheduler_output.scheduled_reqs) {
    append(tokens, scheduled.request_id, scheduled.num_tokens);
    if (scheduled.is_new) append(new_hits, scheduled.request_id, scheduled.num_computed_tokens);
    if (scheduled.resumed_from_preemption)
      append(resumed_hits, scheduled.request_id, scheduled.num_computed_tokens);
  }
  const char* separator = new_hits.empty() || resumed_hits.empty() ? "" : ", ";
  Step& step = unprinted_.emplace_back();
  step.line = str("{\"step\": ", num_steps_++, ", \"tokens\": {", tokens,
                  "}, \"preempted\": ", list(scheduler_output.preempted_req_ids), ", \"hits\": {", new_hits,
                  separator, resumed_hits, "}");
  step.num_free_blocks = scheduler_->kv_cache_manager().num_free_blocks();
  step.rule = rule(scheduler_output);
  step.done = !launched;
  follow(scheduler_output);
  step.scheduler_output = std::move(scheduler_output);
  num_in_flight_ += launched;
  return launched;
}

// The name of a deliberate difference to vLLM that this step may show; compare.py has the reasons.
const char* Replay::rule(const SchedulerOutput& scheduler_output) const {
  for (RequestId id : scheduler_output.preempted_req_ids) {
    const Request* victim = scheduler_->find_request(id);
    const int32_t num_in_flight = victim->num_output_placeholders();
    const bool last_is_in_flight =
        num_in_flight > 0 &&
        (victim->num_output_tokens() + num_in_flight >= victim->sampling_params().max_tokens ||
         victim->num_tokens() + num_in_flight >= max_model_len_);
    const auto place = std::find(running_.begin(), running_.end(), id);
    const bool stood_in_front =
        std::any_of(scheduler_output.scheduled_reqs.begin(), scheduler_output.scheduled_reqs.end(),
                    [&](const ScheduledRequest& s) {
                      return std::find(place, running_.end(), s.request_id) != running_.end();
                    });
    if (last_is_in_flight && stood_in_front) return "passed_over_after_front_preemption";
  }
  return has_passed_over_ ? "passed_over_for_adapters" : nullptr;
}

void Replay::follow(const SchedulerOutput& scheduler_output) {
  has_passed_over_ |= std::ranges::any_of(ids_, [this](RequestId id) {
    const Request* request = scheduler_->find_request(id);
    return request && request->is_queued() && request->lora_id() != 0 &&
           !scheduler_->lora_manager().has_room(request->lora_id());
  });
  for (RequestId id : scheduler_output.preempted_req_ids) std::erase(running_, id);
  for (const ScheduledRequest& scheduled : scheduler_output.scheduled_reqs) {
    if (scheduled.is_new || scheduled.resumed_from_preemption) running_.push_back(scheduled.request_id);
  }
}

void Replay::collect() {
  Step& step = *std::find_if(unprinted_.begin(), unprinted_.end(), [](const Step& s) { return !s.done; });
  ModelRunnerOutput result;
  result.reset(step.scheduler_output.step_id);
  auto draft = step.scheduler_output.spec_token_ids.begin();
  std::vector<int32_t> tokens;
  for (const ScheduledRequest& scheduled : step.scheduler_output.scheduled_reqs) {
    const Script& script = scripts_.at(scheduled.request_id);
    const auto first_output =
        static_cast<size_t>(std::max(scheduled.num_computed_tokens + scheduled.num_tokens -
                                         scheduled.num_spec_tokens - script.num_prompt_tokens,
                                     0));
    tokens.clear();
    bool goes_on = scheduled.samples != 0;
    for (int32_t i = 0; i < scheduled.num_spec_tokens; ++i, ++draft) {
      if (!goes_on) continue;
      tokens.push_back(script.sample(first_output + tokens.size()));
      goes_on = tokens.back() == *draft;
    }
    if (goes_on) tokens.push_back(script.sample(first_output + tokens.size()));
    const size_t last = first_output + tokens.size() - 1;
    const bool has_drafts = !tokens.empty() && last < script.drafts.size();
    result.add(scheduled.request_id, tokens,
               has_drafts ? std::span<const int32_t>(script.drafts[last]) : std::span<const int32_t>());
  }
  EngineCoreOutputs outputs;
  scheduler_->update_from_output(step.scheduler_output, result, outputs);
  for (const EngineCoreOutput& output : outputs.outputs) {
    const auto ids = outputs.new_token_ids(output);
    auto& delivered = scripts_.at(output.request_id).delivered;
    delivered.insert(delivered.end(), ids.begin(), ids.end());
    if (output.finish_reason == FinishReason::kNone) continue;
    std::erase(running_, output.request_id);
    step.finished.push_back(output.request_id);
    finish_order_.push_back(
        str("[", output.request_id, ", \"", finish_reason_name(output.finish_reason), "\"]"));
  }
  step.done = true;
  --num_in_flight_;
}

void Replay::end(std::string& out) {
  int32_t num_left = kMaxStepsToEnd;
  while (scheduler_->has_unfinished_requests() && num_left-- > 0) step(out);
  if (scheduler_->has_unfinished_requests()) out += "{\"stuck\": true}\n";
  // Steps that were scheduled ahead for requests that have ended meanwhile.
  while (num_in_flight_ > 0) collect();
  print_done(out);
  std::string order, outputs;
  for (const std::string& text : finish_order_) order += (order.empty() ? "" : ", ") + text;
  for (RequestId id : ids_)
    outputs += str(outputs.empty() ? "\"" : ", \"", id, "\": ", list(scripts_.at(id).delivered));
  out += str("{\"end\": true, \"finish_order\": [", order, "], \"outputs\": {", outputs,
             "}, \"free\": ", scheduler_->kv_cache_manager().num_free_blocks(),
             ", \"preemptions\": ", num_preemptions_, ", \"uncomputed_hits\": 0}\n");
}

void Replay::print_done(std::string& out) {
  for (; !unprinted_.empty() && unprinted_.front().done; unprinted_.pop_front()) {
    const Step& step = unprinted_.front();
    out += str(step.line, ", \"finished\": ", list(step.finished), ", \"free\": ", step.num_free_blocks);
    if (step.rule) out += str(", \"rule\": \"", step.rule, "\"");
    out += "}\n";
  }
}

void replay_all(std::istream& lines, const std::string& name) {
  std::unique_ptr<Replay> replay;
  bool skips = false;  // the rest of a trace in which an error was found
  std::string out;
  int64_t number = 0;
  for (std::string text; std::getline(lines, text);) {
    const std::string place = str(name, ":", ++number);
    if (text.find_first_not_of(" \t\r") == std::string::npos) continue;
    const Json document = parse_json(text, place);
    const JsonNode event(document, place);
    bool ended = event.find("end").has_value();
    if (const auto config = event.find("config")) {
      try {
        replay = std::make_unique<Replay>(*config);
      } catch (const InvalidArgument& error) {
        // The scheduler's own complaints do not know the line.
        const std::string message = error.what();
        throw InvalidArgument(message.starts_with(place) ? message : str(place, ": ", message));
      }
      skips = false;
    } else if (replay) {
      try {
        replay->handle(event, out);
      } catch (const InternalError& error) {
        out += str(Json{{"error", error.what()}}.dump(), "\n");
        ended = skips = true;
      }
    } else if (!skips) {
      event.fail("stands before any config");
    }
    if (ended) {
      replay.reset();
      // Whoever feeds traces one by one waits for it.
      std::fwrite(out.data(), 1, out.size(), stdout);
      std::fflush(stdout);
      out.clear();
    }
  }
  std::fwrite(out.data(), 1, out.size(), stdout);
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) {
  if (argc > 2) {
    std::fprintf(stderr, "usage: %s [TRACES]    (JSON lines; stdin by default)\n", argv[0]);
    return 2;
  }
  try {
    if (argc == 2) {
      std::ifstream file(argv[1]);
      if (!file) throw quire::InvalidArgument(quire::str(argv[1], ": cannot be opened"));
      quire::replay_all(file, argv[1]);
    } else {
      std::ios::sync_with_stdio(false);
      quire::replay_all(std::cin, "stdin");
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
