#include "scheduler/scenario_runner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <utility>

#include "kv_cache/kv_cache_planner.h"
#include "scheduler/scenario_doubles.h"

namespace quire {
namespace {

constexpr int32_t kEos = 0;

// Tokens that only this name has.
int32_t token_of(const std::string& name, int32_t position) {
  uint32_t hash = 17;
  for (char c : name) hash = hash * 31 + static_cast<unsigned char>(c);
  return static_cast<int32_t>(1 + (hash % 1000) * 100000 + static_cast<uint32_t>(position) % 100000);
}

}  // namespace

ScenarioRunner::ScenarioRunner() = default;
ScenarioRunner::~ScenarioRunner() = default;

void ScenarioRunner::run_file(const std::string& path) {
  std::ifstream file(path);
  ASSERT_TRUE(file) << path;
  const std::string name = path.substr(path.rfind('/') + 1);
  int number = 0;
  for (std::string text; std::getline(file, text);) {
    const ScenarioLine line = ScenarioLine::parse(text, name + ":" + std::to_string(++number));
    if (line.word.empty()) continue;
    const testing::ScopedTrace trace(path.c_str(), number, text);
    try {
      run_line(line);
    } catch (const std::exception& error) {
      FAIL() << line.place << ": " << error.what();
    }
    if (testing::Test::HasFailure()) return;
  }
}

std::string ScenarioRunner::name_of(RequestId id) const {
  for (const auto& [name, script] : scripts_) {
    if (script.id == id) return name;
  }
  return "?";
}

RequestId ScenarioRunner::id_of(const std::string& name) const {
  const auto found = scripts_.find(name);
  return found == scripts_.end() ? 9999 : found->second.id;
}

std::string ScenarioRunner::names(const std::vector<RequestId>& ids) const {
  std::vector<std::string> parts;
  for (RequestId id : ids) parts.push_back(name_of(id));
  return parts.empty() ? "-" : join(parts, ",");
}

void ScenarioRunner::run_line(const ScenarioLine& line) {
  const auto argument = [&](size_t i) { return line.arguments.at(i); };
  if (line.word == "engine") {
    make_engine(line);
  } else if (line.word == "refused") {
    // The same words as `engine`; the arguments are words of the error.
    try {
      make_engine(line);
      ADD_FAILURE() << "was accepted";
    } catch (const InvalidArgument& error) {
      for (const std::string& word : line.arguments)
        EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
    }
  } else if (line.word == "add") {
    add(line);
  } else if (line.word == "abort") {
    const bool known = scheduler_->finish_request(id_of(argument(0)), RequestStatus::kFinishedAborted);
    EXPECT_EQ(known, line.text("unknown") != "yes");
  } else if (line.word == "schedule") {
    schedule(line);
  } else if (line.word == "collect") {
    collect(line);
  } else if (line.word == "step") {
    schedule(line);
    if (!testing::Test::HasFailure() && !nothing_scheduled_) collect(line);
  } else if (line.word == "run") {
    // Steps until nothing is unfinished.
    int num_dry = 0;
    for (int step = 0; scheduler_->has_unfinished_requests(); ++step) {
      ASSERT_LT(step, 1000) << "does not end";
      ScenarioLine any;
      schedule(any);
      // A step may do nothing but preempt.
      num_dry = in_flight_.empty() ? num_dry + 1 : 0;
      if (num_dry > 1) FAIL() << "nothing to do, but requests are unfinished";
      if (!in_flight_.empty()) collect(any);
    }
    check_values(line, nullptr, nullptr);
  } else if (line.word == "time") {
    now_ = 1.0 + std::stod(argument(0)) / 1000;
  } else if (line.word == "fail") {
    if (line.arguments.empty()) fail_next_ = true;
    for (const std::string& name : line.arguments) scripts_.at(name).error = "injected";
  } else if (line.word == "grammar") {
    using State = StructuredOutputGrammar::State;
    grammars_->states[id_of(argument(0))] = argument(1) == "ready" ? State::kReady : State::kFailed;
  } else if (line.word == "known") {
    connector_->offers[id_of(argument(0))].known = true;
  } else if (line.word == "received") {
    extra_.finished_recving.push_back(id_of(argument(0)));
  } else if (line.word == "sent") {
    extra_.finished_sending.push_back(id_of(argument(0)));
  } else if (line.word == "invalid") {
    extra_.invalid_block_ids.push_back(connector_->blocks.at(id_of(argument(0))).at(std::stoul(argument(1))));
  } else if (line.word == "tell_workers") {
    connector_->meta = argument(0) == "nothing" ? "" : argument(0);
  } else if (line.word == "pause") {
    scheduler_->set_pause_state(argument(0) == "all" ? PauseState::kPausedAll : PauseState::kPausedNew);
  } else if (line.word == "resume") {
    scheduler_->set_pause_state(PauseState::kUnpaused);
  } else if (line.word == "reset_prefix_cache") {
    EXPECT_EQ(scheduler_->reset_prefix_cache() ? "done" : "refused", argument(0));
  } else if (line.word == "status") {
    const Request* request = scheduler_->find_request(id_of(argument(0)));
    EXPECT_STREQ(request ? status_name(request->status()) : "GONE", argument(1).c_str());
  } else if (line.word == "check") {
    check_values(line, nullptr, nullptr);
  } else {
    FAIL() << "no such word: " << line.word;
  }
}

void ScenarioRunner::make_engine(const ScenarioLine& line) {
  const auto number = [&](const char* key, int64_t otherwise) {
    return static_cast<int32_t>(line.number(key, otherwise));
  };
  SchedulerConfig config;
  config.max_num_seqs = number("max_num_seqs", 8);
  config.max_num_batched_tokens = number("max_num_batched_tokens", 32);
  config.max_model_len = number("max_model_len", 32);
  config.max_in_flight_steps = number("max_in_flight_steps", 1);
  config.policy = line.text("policy", "fcfs");
  config.enable_chunked_prefill = number("enable_chunked_prefill", 1) != 0;
  config.long_prefill_token_threshold = number("long_prefill_token_threshold", 0);
  config.max_num_partial_prefills = number("max_num_partial_prefills", 0);
  config.max_long_partial_prefills = number("max_long_partial_prefills", 0);
  config.enable_prefix_caching = number("enable_prefix_caching", 1) != 0;
  config.enable_kv_cache_events = number("enable_kv_cache_events", 0) != 0;
  config.scheduler_reserve_full_isl = number("scheduler_reserve_full_isl", 1) != 0;
  config.watermark = std::stof(line.text("watermark", "0"));
  config.num_lookahead_tokens = number("num_lookahead_tokens", 0);
  config.num_padding_drafts = number("num_padding_drafts", 0);
  config.max_num_encoder_input_tokens = number("max_num_encoder_input_tokens", 0);
  config.encoder_cache_size = number("encoder_cache_size", 0);
  config.disable_chunked_mm_input = number("disable_chunked_mm_input", 0) != 0;
  config.max_loras = number("max_loras", 0);
  config.max_awaited_lora_loads = number("max_awaited_lora_loads", config.max_awaited_lora_loads);
  if (line.text("kv_load_failure_policy") == "fail")
    config.kv_load_failure_policy = SchedulerConfig::KVLoadFailure::kFail;

  // groups=full,window:8,state@8: kinds, a window's tokens, a block size of its own.
  std::vector<KVCacheSpec> layers;
  for (const std::string& text : split(line.text("groups", "full"), ',')) {
    KVCacheSpec spec;
    const auto at = split(text, '@');
    spec.block_size = at.size() > 1 ? std::stoi(at[1]) : number("block_size", 4);
    spec.page_bytes = 4096;
    const auto parts = split(at[0], ':');
    if (parts[0] == "window") {
      spec.kind = KVCacheKind::kSlidingWindow;
      spec.sliding_window = std::stoi(parts.at(1));
    } else if (parts[0] == "state") {
      spec.kind = KVCacheKind::kState;
    } else if (parts[0] == "mla") {
      spec.kind = KVCacheKind::kMlaLatent;
    }
    layers.push_back(spec);
  }
  KVCacheDemand demand;
  demand.num_blocks = number("usable_blocks", 20) + 1;
  demand.max_model_len = 1;  // a scenario may have less than one sequence needs
  demand.max_tokens_in_flight = config.max_num_batched_tokens * config.max_in_flight_steps;
  config.validate(
      number("engine_block_size", std::min(number("block_size", 4), config.max_num_batched_tokens)));

  SchedulerParts parts;
  connector_ = std::make_shared<Connector>();
  grammars_ = std::make_shared<Grammars>();
  if (number("kv_connector", 0) != 0) parts.kv_connector = connector_;
  parts.structured_output_manager = grammars_;
  scripts_.clear();
  in_flight_ = {};
  advanced_.clear();
  extra_ = {};
  now_ = 1.0;
  scheduler_ = std::make_unique<Scheduler>(config, plan_kv_cache(layers, demand), std::move(parts));
}

void ScenarioRunner::add(const ScenarioLine& line) {
  const std::string name = line.arguments.at(0);
  Script& script = scripts_[name];
  script = {};
  script.id = scripts_.size() * 100 + static_cast<RequestId>(name[0]);
  script.stop_at = static_cast<int32_t>(line.number("stop_at", -1));
  script.num_drafts = static_cast<int32_t>(line.number("drafts", 0));
  script.num_accepted = static_cast<int32_t>(line.number("accepted", 0));

  EngineCoreRequest request;
  request.request_id = script.id;
  // prefix=system:8 says which tokens come first; the rest are the request's own.
  const auto prefix = split(line.text("prefix"), ':');
  const auto num_prompt_tokens = static_cast<int32_t>(line.number("prompt", 1));
  for (int32_t i = 0; i < num_prompt_tokens; ++i) {
    const bool shared = !prefix.empty() && i < std::stoi(prefix.at(1));
    request.prompt_token_ids.edit().push_back(token_of(shared ? prefix[0] : name, i));
  }
  for (int32_t i = 0; i < line.number("outputs", 0); ++i)
    request.output_token_ids.push_back(token_of(name, 500 + i));
  request.sampling_params.edit().max_tokens = static_cast<int32_t>(line.number("max_tokens", 4));
  request.sampling_params.edit().min_tokens = static_cast<int32_t>(line.number("min_tokens", 0));
  request.eos_token_ids = {kEos};
  request.priority = static_cast<int32_t>(line.number("priority", 0));
  request.arrival_time = now_;
  if (line.values.contains("deadline_ms"))
    request.deadline = now_ + static_cast<double>(line.number("deadline_ms", 0)) / 1000;
  request.user = line.text("user");
  request.cache_salt = line.text("cache_salt");
  request.lora_name = line.text("lora_name");
  request.lora_id = static_cast<LoraId>(line.number("lora", 0));
  request.lora_fingerprint = line.text("lora_fingerprint");
  // images=cat@4+6: an input called cat, at token 4, of 6 embeddings.
  for (const std::string& image : split(line.text("images"), ',')) {
    const size_t at = image.find('@');
    const size_t plus = image.find('+');
    request.mm_features.push_back({image.substr(0, at), std::stoi(image.substr(at + 1, plus - at - 1)),
                                   std::stoi(image.substr(plus + 1))});
  }
  if (line.text("grammar") == "compiling")
    grammars_->states[script.id] = StructuredOutputGrammar::State::kCompiling;
  grammars_->refuses = static_cast<int32_t>(line.number("refuses", -1));
  if (line.text("grammar") == "ready") grammars_->states[script.id] = StructuredOutputGrammar::State::kReady;
  Connector::Offer& offer = connector_->offers[script.id];
  offer.num_tokens = static_cast<int32_t>(line.number("remote", 0));
  offer.load_async = line.number("load_async", 0) != 0;
  offer.holds = line.number("send", 0) != 0;
  offer.known = line.text("match") != "unknown";
  scheduler_->add_request(std::move(request));
}

void ScenarioRunner::schedule(const ScenarioLine& line) {
  scheduler_->advance(now_, advanced_);
  SchedulerOutput made;
  nothing_scheduled_ = !scheduler_->schedule(made);
  if (!nothing_scheduled_) in_flight_.push() = made;
  if (line.word.empty()) return;
  std::vector<std::string> parts;
  int32_t total = 0;
  for (const ScheduledRequest& s : made.scheduled_reqs) {
    parts.push_back(name_of(s.request_id) + ":" + std::to_string(s.num_tokens));
    total += s.num_tokens;
  }
  EXPECT_EQ(parts.empty() ? "nothing" : join(parts, " "),
            line.arguments.empty() ? "nothing" : join(line.arguments, " "));
  EXPECT_EQ(total, made.total_num_scheduled_tokens);
  ScenarioLine of_schedule = line;
  for (const char* key : {"finished", "error", "tokens"}) of_schedule.values.erase(key);
  check_values(of_schedule, &made, nullptr);
}

void ScenarioRunner::collect(const ScenarioLine& line) {
  ASSERT_FALSE(in_flight_.empty()) << "nothing is in flight";
  SchedulerOutput& scheduler_output = in_flight_.front();
  ModelRunnerOutput result = std::move(extra_);
  extra_ = {};
  result.step_id = scheduler_output.step_id;
  for (const ScheduledRequest& s : scheduler_output.scheduled_reqs) {
    Script& script = scripts_.at(name_of(s.request_id));
    std::vector<int32_t> tokens;
    std::vector<int32_t> drafts;
    if (s.samples) {
      const int32_t num_tokens = 1 + std::min(s.num_spec_tokens, script.num_accepted);
      for (int32_t i = 0; i < num_tokens; ++i) {
        const int32_t index = script.num_sampled++;
        tokens.push_back(index == script.stop_at ? kEos : token_of(name_of(s.request_id), 10000 + index));
      }
      drafts.assign(static_cast<size_t>(script.num_drafts), 7);
    }
    if (!script.error.empty()) {
      result.errors.push_back({static_cast<uint32_t>(result.results.size()), script.error});
      script.error.clear();
    }
    result.add(s.request_id, tokens, drafts);
  }
  if (fail_next_) result.error = "the step failed";
  fail_next_ = false;
  EngineCoreOutputs outputs = std::move(advanced_);
  advanced_.clear();
  scheduler_->update_from_output(scheduler_output, result, outputs);
  in_flight_.pop();
  if (line.word.empty()) return;
  ScenarioLine of_outputs = line;
  of_outputs.values.clear();
  for (const char* key : {"finished", "error", "tokens"}) {
    if (line.values.contains(key)) of_outputs.values[key] = line.values.at(key);
  }
  if (line.word == "collect") of_outputs.values = line.values;
  check_values(of_outputs, nullptr, &outputs);
  // What a line does not mention must not happen.
  if (!line.values.contains("finished")) {
    for (const EngineCoreOutput& output : outputs.outputs)
      EXPECT_EQ(output.finish_reason, FinishReason::kNone) << name_of(output.request_id) << " finished";
  }
}

}  // namespace quire
