// A scheduler under operations that somebody chooses, and a plain model beside it that knows what must hold
// after each of them. Random numbers choose in property_test.cpp, a fuzzer's bytes in
// tests/fuzz/scheduler_fuzz.cpp.
#pragma once

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "kv_cache/group_policy.h"
#include "kv_cache/kv_cache_planner.h"
#include "scheduler/scheduler.h"
#include "util/str.h"

namespace quire {

class SchedulerChecker {
 public:
  // A number in [0, limit).
  using Choose = std::function<uint32_t(uint32_t limit)>;

  // What does not hold; the message says what, and of whom.
  struct Violation : std::runtime_error {
    using std::runtime_error::runtime_error;
  };

  explicit SchedulerChecker(Choose choose) : choose_(std::move(choose)) { make_scheduler(); }

  // One operation, then all checks.
  void operate() {
    switch (choose_(16)) {
      case 0:
      case 1:
      case 2:
      case 3:
        if (live_.size() < 12) add();
        break;
      case 4:
        if (!live_.empty()) abort();
        break;
      case 5: now_ += 0.5; break;
      case 6:
        if (choose_(4) == 0) scheduler_->set_pause_state(static_cast<PauseState>(choose_(3)));
        break;
      case 7:
        if (choose_(4) == 0) scheduler_->reset_prefix_cache();
        break;
      case 8:
      case 9:
      case 10:
      case 11:
        if (in_flight_.size() < static_cast<size_t>(config_.max_in_flight_steps)) schedule();
        break;
      default:
        if (!in_flight_.empty()) {
          collect(/*trouble=*/true);
        } else {
          schedule();
        }
    }
    check();
  }

  // Lets everything end. All memory must come back.
  void finish() {
    scheduler_->set_pause_state(PauseState::kUnpaused);
    draining_ = true;
    int64_t num_tokens = 0;
    for (const auto& [id, request] : live_) num_tokens += request.num_prompt_tokens + request.max_tokens;
    // A step computes at least one token; requests may be recomputed for each token of those before them.
    int64_t num_steps_left = 100 + num_tokens * static_cast<int64_t>(live_.size() + 2) * 4;
    while (scheduler_->has_unfinished_requests() || scheduler_->num_held_requests() > 0 ||
           !in_flight_.empty()) {
      require(num_steps_left-- > 0, "requests that never end: ", scheduler_->num_unfinished_requests());
      if (in_flight_.size() < static_cast<size_t>(config_.max_in_flight_steps)) schedule();
      if (!in_flight_.empty()) collect(/*trouble=*/false);
      check();
    }
    require(scheduler_->reset_prefix_cache(), "a block is still in use");
    const SchedulerStats stats = scheduler_->stats();
    require(stats.num_waiting_tokens == 0 && stats.num_prefill_tokens == 0 && stats.num_wasted_slots == 0 &&
                stats.num_used_slots == 0 && stats.num_waiting_reqs == 0,
            "counts of nothing are not 0");
    require(stats.num_free_blocks == num_free_at_start_, stats.num_free_blocks, " blocks of ",
            num_free_at_start_);
    if (config_.encoder_cache_size > 0) {
      MultiModalFeature whole{"whole", 0, config_.encoder_cache_size};
      require(scheduler_->encoder_cache_manager().can_allocate(whole.num_embeds),
              "encoder outputs are still held");
    }
  }

  const Scheduler& scheduler() const { return *scheduler_; }
  uint64_t num_finished() const { return num_finished_; }
  std::string describe() const {
    const SchedulerConfig& c = config_;
    std::string text =
        str(c.policy, " seqs=", c.max_num_seqs, " tokens=", c.max_num_batched_tokens,
            " flight=", c.max_in_flight_steps, " chunked=", c.enable_chunked_prefill,
            " threshold=", c.long_prefill_token_threshold, " partial=", c.max_num_partial_prefills, "/",
            c.max_long_partial_prefills, " caching=", c.enable_prefix_caching,
            " isl=", c.scheduler_reserve_full_isl, " watermark=", c.watermark,
            " lookahead=", c.num_lookahead_tokens, " drafts=", num_drafts_, " padding=", c.num_padding_drafts,
            " encoder=", c.max_num_encoder_input_tokens, "/", c.encoder_cache_size, "/",
            c.disable_chunked_mm_input, " connector=", connector_ != nullptr, " blocks=", num_free_at_start_,
            " groups=", policies_.size());
    for (const auto& [id, model] : live_) {
      const Request& r = *scheduler_->find_request(id);
      text += str("\n  ", id, " ", status_name(r.status()), " tokens=", r.num_tokens(),
                  " computed=", r.num_computed_tokens(), " placeholders=", r.num_output_placeholders(),
                  " drafts=", r.spec_token_ids().size(), " slots=", r.num_slots(),
                  " preempted=", r.num_preemptions());
    }
    return text;
  }

 private:
  // What the model knows of a request.
  struct Model {
    int32_t num_prompt_tokens = 0, max_tokens = 0;
    int32_t num_tokens = 0;     // prompt and what came back
    int32_t num_computed = -1;  // where the next step must start; -1: the output says, it begins or resumes
    int32_t num_sampling = 0;   // steps in flight that sample
    int32_t order = 0;
    bool told = false;                        // the workers know it
    bool dropped = false;                     // results of steps in flight do not count
    std::vector<std::vector<BlockId>> table;  // as the workers have it
  };
  struct Step {
    SchedulerOutput scheduler_output;
    std::map<RequestId, std::vector<BlockId>> loaded;  // synchronously, for this step
    bool failed = false;
  };

  template <typename... Parts>
  static void require(bool ok, const Parts&... parts) {
    if (!ok) throw Violation(str(parts...));
  }

  // Answers at random, and remembers what it was told.
  struct Connector : KVConnectorScheduler {
    explicit Connector(SchedulerChecker& checker) : checker(checker) {}
    std::optional<KVConnectorMatch> get_num_new_matched_tokens(const KVConnectorRequest& request,
                                                               int32_t num_computed) override {
      const int32_t block_size = checker.scheduler_->kv_cache_manager().block_size(0);
      // An answer that may be asked for again is the same until something came of it.
      const auto [answer, is_new] = answers.try_emplace(request.request_id);
      if (is_new) {
        if (!checker.draining_ && checker.choose_(8) == 0) {
          answers.erase(answer);
          return std::nullopt;
        }
        answer->second.num_tokens =
            checker.draining_ ? 0 : static_cast<int32_t>(checker.choose_(6)) * block_size;
        answer->second.load_async = checker.choose_(2) == 0;
      }
      hits[request.request_id] = num_computed;
      const int32_t num_tokens = std::clamp(answer->second.num_tokens - num_computed, 0,
                                            static_cast<int32_t>(request.token_ids.size()) - num_computed);
      return KVConnectorMatch{num_tokens, answer->second.load_async};
    }
    void update_state_after_alloc(const KVConnectorRequest& request, KVConnectorBlocks blocks,
                                  int32_t num_external) override {
      const auto block_ids = blocks[0];
      const KVConnectorMatch answer = answers[request.request_id];
      answers.erase(request.request_id);
      if (num_external == 0) return;
      const int32_t block_size = checker.scheduler_->kv_cache_manager().block_size(0);
      const auto first = static_cast<size_t>(hits[request.request_id] / block_size);
      const auto end =
          static_cast<size_t>((hits[request.request_id] + num_external + block_size - 1) / block_size);
      require(end <= block_ids.size(), "no blocks to load into");
      std::vector<BlockId> ids(block_ids.begin() + static_cast<std::ptrdiff_t>(first),
                               block_ids.begin() + static_cast<std::ptrdiff_t>(end));
      (answer.load_async ? loading : loaded_now)[request.request_id] = std::move(ids);
    }
    std::string build_connector_meta(uint64_t, std::span<const KVConnectorScheduled>) override {
      return loading.empty() && sending.empty() ? "" : "go on";
    }
    bool request_finished(const KVConnectorRequest& request, KVConnectorBlocks) override {
      answers.erase(request.request_id);
      if (checker.choose_(3) != 0) return false;
      sending.insert(request.request_id);
      return true;
    }
    SchedulerChecker& checker;
    std::map<RequestId, KVConnectorMatch> answers;
    std::map<RequestId, int32_t> hits;
    std::map<RequestId, std::vector<BlockId>> loading, loaded_now;
    std::set<RequestId> sending;
  };

  void make_scheduler() {
    const auto pick = [this](std::initializer_list<int32_t> values) {
      return *(values.begin() + choose_(static_cast<uint32_t>(values.size())));
    };
    const int32_t block_size = pick({1, 4, 8});
    config_.max_model_len = 48;
    config_.max_num_seqs = pick({1, 3, 8});
    config_.max_num_batched_tokens = pick({8, 20, 64});
    config_.max_in_flight_steps = pick({1, 2, 3});
    static const char* const kPolicies[] = {"fcfs", "priority", "cache_aware", "fair"};
    config_.policy = kPolicies[choose_(4)];
    config_.enable_chunked_prefill = config_.max_num_batched_tokens < 64 || choose_(4) > 0;
    if (choose_(3) == 0) {
      config_.long_prefill_token_threshold = pick({3, 8});
      config_.max_long_partial_prefills = pick({0, 1});
    }
    if (choose_(4) == 0) config_.max_num_partial_prefills = 1;
    config_.enable_prefix_caching = choose_(4) > 0;
    config_.scheduler_reserve_full_isl = choose_(2) == 0;
    config_.watermark = choose_(4) == 0 ? 0.1F : 0.0F;
    config_.num_lookahead_tokens = pick({0, 0, 2});
    num_drafts_ = pick({0, 0, 3});
    config_.num_padding_drafts = choose_(6) == 0 ? 2 : 0;
    if (choose_(3) == 0) {
      config_.max_num_encoder_input_tokens = pick({8, 16});
      config_.encoder_cache_size = pick({8, 20});
      config_.disable_chunked_mm_input = choose_(3) == 0;
    }
    std::vector<KVCacheSpec> layers(1);
    layers[0].block_size = block_size;
    layers[0].page_bytes = 4096;
    const uint32_t kind = choose_(6);
    if (kind == 1 || kind == 3) {
      layers.push_back(layers[0]);
      layers.back().kind = KVCacheKind::kSlidingWindow;
      layers.back().sliding_window = pick({4, 9});
    }
    if (kind == 2 || kind == 3) {
      layers.push_back(layers[0]);
      layers.back().kind = KVCacheKind::kState;
    }
    if (kind == 4) layers[0].kind = KVCacheKind::kSlidingWindow, layers[0].sliding_window = 8;
    KVCacheDemand demand;
    demand.max_model_len = config_.max_model_len;
    demand.max_tokens_in_flight = config_.max_num_batched_tokens * config_.max_in_flight_steps;
    // Enough for one sequence, and not for many.
    demand.num_blocks = config_.max_model_len / block_size + 2 + pick({0, 3, 20});
    const KVCacheConfig kv_cache = plan_kv_cache(layers, demand);
    config_.validate(block_size);
    SchedulerParts parts;
    if (kind == 5) {
      connector_ = std::make_shared<Connector>(*this);
      parts.kv_connector = connector_;
      config_.kv_load_failure_policy = static_cast<SchedulerConfig::KVLoadFailure>(choose_(2));
      config_.num_padding_drafts = 0;
    }
    for (const KVCacheGroup& group : kv_cache.groups) policies_.emplace_back(group.spec);
    scheduler_ = std::make_unique<Scheduler>(config_, kv_cache, std::move(parts));
    num_free_at_start_ = scheduler_->stats().num_free_blocks;
  }

  void add() {
    EngineCoreRequest request;
    request.request_id = ++last_id_;
    const auto length = static_cast<int32_t>(1 + choose_(40));
    const auto family = static_cast<int32_t>(choose_(3));
    for (int32_t i = 0; i < length; ++i)
      request.prompt_token_ids.edit().push_back(i < 24 ? family * 100 + i
                                                       : static_cast<int32_t>(1000 + choose_(50)));
    request.sampling_params.edit().max_tokens =
        1 + static_cast<int32_t>(choose_(static_cast<uint32_t>(config_.max_model_len - length)));
    request.eos_token_ids = {kEos};
    request.priority = static_cast<int32_t>(choose_(3)) - 1;
    request.arrival_time = now_;
    if (choose_(8) == 0) request.deadline = now_ + 1.0;
    request.user = std::string(1, static_cast<char>('a' + choose_(3)));
    if (choose_(4) == 0) request.cache_salt = "salt";
    if (config_.encoder_cache_size > 0) {
      for (int32_t at = static_cast<int32_t>(choose_(8)); at + 4 <= length && choose_(4) > 0; at += 5) {
        const int32_t num_embeds = std::min<int32_t>(4 + static_cast<int32_t>(choose_(5)), length - at);
        // A name says how long the input is, as content would.
        request.mm_features.push_back({str("image", choose_(4), "/", num_embeds), at, num_embeds});
        at += num_embeds;
      }
    }
    Model model;
    model.num_prompt_tokens = model.num_tokens = length;
    model.max_tokens = request.sampling_params->max_tokens;
    model.order = static_cast<int32_t>(last_id_);
    live_[last_id_] = model;
    scheduler_->add_request(std::move(request));
  }

  void abort() {
    auto victim = live_.begin();
    std::advance(victim, choose_(static_cast<uint32_t>(live_.size())));
    require(scheduler_->finish_request(victim->first, RequestStatus::kFinishedAborted),
            "an unfinished request is unknown");
    end(victim->first);
  }

  void end(RequestId id) {
    require(live_.erase(id) == 1, "request ", id, " ended twice");
    ++num_finished_;
  }

  void take_outputs(const EngineCoreOutputs& outputs) {
    for (const EngineCoreOutput& output : outputs.outputs) {
      require(live_.contains(output.request_id), "an output of request ", output.request_id,
              ", which has ended");
      Model& model = live_.at(output.request_id);
      model.num_tokens += output.num_tokens;
      if (output.finish_reason != FinishReason::kNone) {
        end(output.request_id);
      } else {
        require(model.num_tokens - model.num_prompt_tokens < model.max_tokens, "more than max_tokens");
      }
    }
  }

  void schedule() {
    EngineCoreOutputs outputs;
    scheduler_->advance(now_, outputs);
    take_outputs(outputs);
    Step step;
    if (connector_) connector_->loaded_now.clear();
    SchedulerOutput& scheduler_output = step.scheduler_output;
    const bool scheduled = scheduler_->schedule(scheduler_output);
    for (RequestId id : scheduler_output.preempted_req_ids) {
      Model& model = live_.at(id);
      model.num_computed = -1;
    }
    require(scheduled || scheduler_output.scheduled_reqs.empty(), "requests in a step that is none");
    check_admission(scheduler_output);
    if (!scheduled) return;
    require(scheduler_output.step_id == ++last_step_, "step ", scheduler_output.step_id);
    int32_t total = 0;
    size_t num_drafts = 0, num_new = 0;
    std::set<RequestId> seen;
    for (size_t i = 0; i < scheduler_output.scheduled_reqs.size(); ++i) {
      const ScheduledRequest& s = scheduler_output.scheduled_reqs[i];
      const RequestId id = s.request_id;
      require(seen.insert(id).second, "request ", id, " is scheduled twice");
      require(live_.contains(id), "request ", id, " is scheduled after its end");
      Model& model = live_.at(id);
      require(s.num_tokens > s.num_spec_tokens && s.num_spec_tokens >= 0, "request ", id, ": ", s.num_tokens,
              " tokens");
      require(s.is_new == !model.told, "request ", id, " is new twice, or never");
      if (s.is_new) {
        require(num_new < scheduler_output.scheduled_new_reqs.size() &&
                    scheduler_output.scheduled_new_reqs[num_new].request_id == id,
                "new requests");
        ++num_new;
        model.told = true;
        model.table.assign(policies_.size(), {});
      }
      if (s.resumed_from_preemption || s.is_new) {
        require(model.num_computed < 0, "request ", id, " resumes while it runs");
        model.num_computed = s.num_computed_tokens;
        for (auto& list : model.table) list.clear();
      }
      require(s.num_computed_tokens == model.num_computed, "request ", id, " goes on at ",
              s.num_computed_tokens, ", not ", model.num_computed);
      model.num_computed += s.num_tokens;
      require(model.num_computed < config_.max_model_len || config_.num_padding_drafts > 0,
              "beyond max_model_len");
      const int32_t num_known = model.num_tokens + model.num_sampling + s.num_spec_tokens;
      require(model.num_computed <= num_known, "request ", id, " computes tokens nobody knows");
      require((s.samples != 0) == (model.num_computed == num_known), "request ", id,
              " samples at the wrong place");
      model.num_sampling += s.samples;
      total += s.num_tokens;
      num_drafts += static_cast<size_t>(s.num_spec_tokens);
      const Request& request = *scheduler_->find_request(id);
      for (size_t g = 0; g < policies_.size(); ++g) {
        auto& table = model.table[g];
        const auto ids = scheduler_output.new_block_ids.at(i, g);
        table.insert(table.end(), ids.begin(), ids.end());
        const auto& held = request.blocks()[g].ids;
        require(table.size() == held.size(), "request ", id, ": the workers know ", table.size(),
                " blocks of ", held.size());
        const int32_t bs = policies_[g].block_size();
        require(static_cast<int32_t>(table.size()) * bs >= model.num_computed, "request ", id,
                ": no slot for its tokens");
        const int32_t first = std::max(policies_[g].first_needed_block(s.num_computed_tokens),
                                       policies_[g].is_state() ? (model.num_computed - 1) / bs : 0);
        for (int32_t b = first; b < policies_[g].num_blocks(model.num_computed); ++b) {
          require(held[static_cast<size_t>(b)] != kNullBlock &&
                      held[static_cast<size_t>(b)] == table[static_cast<size_t>(b)],
                  "request ", id, ": block ", b, " of group ", g, " is needed and not there");
        }
      }
    }
    require(total == scheduler_output.total_num_scheduled_tokens && total <= config_.max_num_batched_tokens,
            total, " tokens in a step");
    require(num_drafts == scheduler_output.spec_token_ids.size(), "drafts");
    require(num_new == scheduler_output.scheduled_new_reqs.size(), "new requests");
    require(scheduler_output.new_block_ids.num_rows() == scheduler_output.scheduled_reqs.size(),
            "rows of blocks");
    require(seen.size() <= static_cast<size_t>(config_.max_num_seqs), seen.size(), " requests run");
    require(scheduler_->pause_state() != PauseState::kPausedAll || seen.empty(), "a step while paused");
    int32_t num_embeds = 0;
    for (const ScheduledEncoderInput& input : scheduler_output.scheduled_encoder_inputs) {
      const Request* request = scheduler_->find_request(input.request_id);
      require(request != nullptr, "an encoder input of nobody");
      num_embeds += request->mm_features().at(static_cast<size_t>(input.input_index)).num_embeds;
    }
    require(num_embeds <= config_.max_num_encoder_input_tokens, num_embeds, " embeddings in a step");
    require(scheduler_->encoder_cache_manager().num_free() >= 0, "encoder cache over-full");
    if (connector_) step.loaded = connector_->loaded_now;
    in_flight_.push_back(std::move(step));
  }

  // Nobody starves: the first in line begins unless something is truly short.
  void check_admission(const SchedulerOutput& scheduler_output) {
    if (config_.policy != "fcfs" || policies_.size() > 1 || connector_ || config_.encoder_cache_size > 0 ||
        !config_.enable_chunked_prefill || config_.max_num_partial_prefills > 0 ||
        config_.max_long_partial_prefills > 0 || config_.watermark > 0 || config_.num_padding_drafts > 0 ||
        scheduler_->pause_state() != PauseState::kUnpaused || !scheduler_output.preempted_req_ids.empty()) {
      return;
    }
    const Request* oldest = nullptr;
    size_t num_running = 0;
    for (RequestId id : scheduler_->unfinished_request_ids()) {
      const Request* request = scheduler_->find_request(id);
      num_running += request->is_running();
      if (request->is_running()) continue;
      if (!oldest || request->arrival_order() < oldest->arrival_order()) oldest = request;
    }
    if (!oldest || oldest->num_output_placeholders() > 0 ||
        num_running >= static_cast<size_t>(config_.max_num_seqs) ||
        scheduler_output.total_num_scheduled_tokens >= config_.max_num_batched_tokens) {
      return;
    }
    const int32_t num_needed = policies_[0].num_blocks(oldest->num_tokens() + config_.num_lookahead_tokens);
    require(scheduler_->stats().num_free_blocks < num_needed, "request ", oldest->id(), " waits, though ",
            num_needed, " blocks are free");
  }

  void collect(bool trouble) {
    Step step = std::move(in_flight_.front());
    in_flight_.pop_front();
    const SchedulerOutput& scheduler_output = step.scheduler_output;
    ModelRunnerOutput result;
    result.reset(scheduler_output.step_id);
    if (trouble && choose_(40) == 0) {
      step.failed = true;
      for (Step& behind : in_flight_) behind.failed = true;
    }
    for (size_t i = 0; i < scheduler_output.scheduled_reqs.size(); ++i) {
      const ScheduledRequest& s = scheduler_output.scheduled_reqs[i];
      std::vector<int32_t> tokens, drafts;
      if (s.samples) {
        const int32_t num_accepted =
            s.num_spec_tokens == 0
                ? 0
                : static_cast<int32_t>(choose_(static_cast<uint32_t>(s.num_spec_tokens + 1)));
        for (int32_t n = 0; n <= num_accepted; ++n)
          tokens.push_back(choose_(20) == 0 ? kEos : 2000 + static_cast<int32_t>(choose_(9)));
        drafts.assign(num_drafts_ == 0 ? 0 : choose_(static_cast<uint32_t>(num_drafts_ + 1)), 5);
      }
      if (trouble && choose_(60) == 0) result.errors.push_back({static_cast<uint32_t>(i), "injected"});
      result.add(s.request_id, tokens, drafts);
    }
    if (step.failed) {
      result.reset(scheduler_output.step_id);
      result.error = "injected";
    }
    if (connector_) report_transfers(step, result, trouble);
    // What the model expects of the requests of this step, before it knows how they end.
    std::map<RequestId, const Request*> before;
    for (const ScheduledRequest& s : scheduler_output.scheduled_reqs) {
      const auto model = live_.find(s.request_id);
      if (model == live_.end()) continue;
      before[s.request_id] = scheduler_->find_request(s.request_id);
    }
    EngineCoreOutputs outputs;
    scheduler_->update_from_output(scheduler_output, result, outputs);
    take_outputs(outputs);
    for (size_t i = 0; i < scheduler_output.scheduled_reqs.size() && !step.failed; ++i) {
      const ScheduledRequest& s = scheduler_output.scheduled_reqs[i];
      const auto found = live_.find(s.request_id);
      if (found == live_.end()) continue;
      Model& model = found->second;
      if (s.samples && model.num_sampling > 0) --model.num_sampling;
      if (model.num_computed >= 0 && s.samples && s.num_spec_tokens > 0)
        model.num_computed -= s.num_spec_tokens - (result.results[i].num_tokens - 1);
    }
    // A load that fails sets requests back, and drops results still to come: the model follows.
    if (connector_) {
      for (auto& [id, model] : live_) {
        const Request& request = *scheduler_->find_request(id);
        if (!request.is_running()) continue;
        model.num_computed = request.num_computed_tokens();
        model.num_sampling = request.num_output_placeholders();
      }
    }
    for (const auto& [id, model] : live_) {
      const Request& request = *scheduler_->find_request(id);
      require(request.num_tokens() == model.num_tokens, "request ", id, " has ", request.num_tokens(),
              " tokens, not ", model.num_tokens);
    }
  }

  void report_transfers(Step& step, ModelRunnerOutput& result, bool trouble) {
    for (auto& [id, blocks] : step.loaded) {
      if (trouble && choose_(6) == 0)
        result.invalid_block_ids.push_back(blocks[choose_(static_cast<uint32_t>(blocks.size()))]);
    }
    for (auto load = connector_->loading.begin(); load != connector_->loading.end();) {
      if (trouble && choose_(2) == 0) {
        ++load;
        continue;
      }
      if (trouble && choose_(5) == 0)
        result.invalid_block_ids.push_back(load->second[choose_(static_cast<uint32_t>(load->second.size()))]);
      result.finished_recving.push_back(load->first);
      load = connector_->loading.erase(load);
    }
    for (auto id = connector_->sending.begin(); id != connector_->sending.end();) {
      if (trouble && choose_(2) == 0) {
        ++id;
        continue;
      }
      result.finished_sending.push_back(*id);
      id = connector_->sending.erase(id);
    }
  }

  // What must hold between any two calls.
  void check() const {
    const KVCacheManager& kv = scheduler_->kv_cache_manager();
    const SchedulerStats stats = scheduler_->stats();
    require(scheduler_->num_unfinished_requests() == live_.size(), "unfinished requests");
    std::vector<std::vector<int32_t>> owners(policies_.size());
    for (size_t g = 0; g < policies_.size(); ++g)
      owners[g].resize(static_cast<size_t>(kv.block_pool(g).num_usable_blocks()) + 1);
    int64_t waiting_tokens = 0, prefill_tokens = 0, wasted = 0;
    int32_t num_running = 0, num_waiting = 0;
    for (const auto& [id, model] : live_) {
      const Request* found = scheduler_->find_request(id);
      require(found != nullptr, "request ", id, " is gone");
      const Request& request = *found;
      require(!request.is_finished(), "request ", id, " is finished and not");
      num_running += request.is_running();
      num_waiting += !request.is_running();
      if (request.is_queued()) waiting_tokens += request.num_tokens() - request.num_computed_tokens();
      if (request.is_running()) {
        prefill_tokens += std::max(request.num_prefill_tokens() - request.num_computed_tokens(), 0);
        require(request.num_computed_tokens() == model.num_computed, "request ", id, " computed ",
                request.num_computed_tokens(), ", not ", model.num_computed);
      }
      for (size_t g = 0; g < request.blocks().size(); ++g) {
        const auto& ids = request.blocks()[g].ids;
        if (!policies_[g].is_state())
          wasted += std::max(
              static_cast<int32_t>(ids.size()) * policies_[g].block_size() - request.num_computed_tokens(),
              0);
        for (BlockId block : ids) owners[g].at(static_cast<size_t>(block)) += block != kNullBlock;
      }
    }
    require(num_running <= config_.max_num_seqs, num_running, " requests run");
    require(stats.num_waiting_reqs == num_waiting, stats.num_waiting_reqs, " wait, not ", num_waiting);
    require(stats.num_waiting_tokens == waiting_tokens, "waiting_tokens ", stats.num_waiting_tokens, ", not ",
            waiting_tokens);
    require(stats.num_prefill_tokens == prefill_tokens, "prefill_tokens ", stats.num_prefill_tokens, ", not ",
            prefill_tokens);
    const bool held = scheduler_->num_held_requests() > 0;  // their blocks are nobody's here
    require(held || stats.num_wasted_slots == wasted, "wasted ", stats.num_wasted_slots, ", not ", wasted);
    for (size_t g = 0; g < policies_.size(); ++g) {
      const BlockPool& pool = kv.block_pool(g);
      int32_t num_used = 0;
      for (BlockId id = 1; id <= pool.num_usable_blocks(); ++id) {
        const int32_t count = owners[g][static_cast<size_t>(id)];
        require(pool.ref_count(id) == count || (held && pool.ref_count(id) > count), "block ", id,
                " of group ", g, " has ", pool.ref_count(id), " references and ", count, " owners");
        num_used += pool.ref_count(id) > 0;
      }
      require(pool.num_free_blocks() + num_used == pool.num_mapped_blocks(), "a block of group ", g,
              " is lost");
    }
  }

  static constexpr int32_t kEos = 1;

  Choose choose_;
  SchedulerConfig config_;
  std::vector<GroupPolicy> policies_;
  std::shared_ptr<Connector> connector_;
  std::unique_ptr<Scheduler> scheduler_;
  std::map<RequestId, Model> live_;
  std::deque<Step> in_flight_;
  RequestId last_id_ = 0;
  StepId last_step_ = 0;
  int32_t num_drafts_ = 0;
  int32_t num_free_at_start_ = 0;
  uint64_t num_finished_ = 0;
  double now_ = 1.0;
  bool draining_ = false;
};

}  // namespace quire
