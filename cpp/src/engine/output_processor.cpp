#include "engine/output_processor.h"

#include <algorithm>
#include <utility>

#include "engine/engine_core.h"
#include "util/check.h"

namespace quire {

void OutputProcessor::add_request(EngineRequest&& request, const std::vector<EngineCoreRequest>& children,
                                  OutputCallback callback, std::unique_ptr<const StopStrings> stop_strings) {
  auto state = std::make_unique<State>();
  state->request_id = request.request_id;
  if (!request.prompt.empty()) state->prompt = std::make_shared<const std::string>(std::move(request.prompt));
  state->prompt_token_ids = children.at(0).prompt_token_ids.pointer();
  state->params = std::move(request.sampling_params);
  state->callback = std::move(callback);
  state->stop_strings = std::move(stop_strings);
  std::optional<ReasoningCounter> reasoning;
  if (!reasoning_tokens_.empty()) reasoning.emplace(reasoning_tokens_, *state->prompt_token_ids);
  for (const EngineCoreRequest& message : children) {
    Child& child = state->children.emplace_back();
    child.reasoning = reasoning;
    child.id = message.request_id;
    child.metrics.arrival_time = message.arrival_time;
    child.output.index = static_cast<int32_t>(state->children.size()) - 1;
    if (state->params.wants_logprobs()) child.output.cumulative_logprob = 0.0;
    if (tokenizer_ && state->params.detokenize) {
      child.detokenizer = tokenizer_->detokenizer(state->params.skip_special_tokens);
    }
  }
  for (size_t i = 0; i < state->children.size(); ++i) children_[state->children[i].id] = {state.get(), i};
  num_unfinished_tokens_ += state->num_tokens();
  state->lora_id = children[0].lora_id;
  if (state->lora_id != 0)
    loras_.add(state->lora_id, children[0].lora_name, static_cast<int32_t>(children.size()));
  const auto [entry, inserted] = requests_.try_emplace(request.request_id, std::move(state));
  QUIRE_CHECK(inserted, "request ", request.request_id, " is already there");
}

void OutputProcessor::process_outputs(EngineCoreOutputs&& outputs, std::vector<RequestId>& to_abort) {
  metrics_.record_stats(outputs.scheduler_stats);
  if (metrics_.has_sink()) loras_.set_running(outputs.running_loras);
  for (PromptLogprobsOutput& given : outputs.prompt_logprobs) {
    const auto found = children_.find(outputs.outputs.at(given.output_index).request_id);
    if (found == children_.end()) continue;
    found->second.first->prompt_logprobs =
        std::make_shared<const std::vector<PositionLogprobs>>(std::move(given.positions));
  }
  for (EngineCoreOutput& output : outputs.outputs) {
    const auto found = children_.find(output.request_id);
    if (found == children_.end()) continue;  // aborted, or stopped by a string, since
    State& state = *found->second.first;
    Child& child = state.children[found->second.second];
    const size_t num_before = child.output.token_ids.size();
    append(state, child, output, outputs.new_token_ids(output), to_abort);
    const auto num_new = static_cast<int32_t>(child.output.token_ids.size() - num_before);
    metrics_.record_output(child.metrics, output, num_new, state.num_prompt_tokens(), outputs.timestamp);
    if (child.output.finished()) {
      metrics_.record_finish(child.metrics, child.output.finish_reason, state.num_prompt_tokens(),
                             state.params, outputs.timestamp);
      record_end_of(state);
    }
    if (!state.changed) changed_.push_back(&state);
    state.changed = true;
  }
}

void OutputProcessor::deliver(std::vector<Delivery>& deliveries) {
  for (State* state : changed_) deliver(*state, deliveries);
  changed_.clear();
}

void OutputProcessor::append(State& state, Child& child, EngineCoreOutput& output,
                             std::span<const int32_t> new_token_ids, std::vector<RequestId>& to_abort) {
  child.changed = true;
  CompletionOutput& out = child.output;
  state.num_cached_tokens = std::max(state.num_cached_tokens, output.num_cached_tokens);
  // A token that ends the sequence belongs to token_ids, but its text is not part of the answer.
  const bool stopped = output.finish_reason == FinishReason::kStop;
  for (size_t i = 0; i < new_token_ids.size(); ++i) {
    const int32_t id = new_token_ids[i];
    const bool is_stop = stopped && i + 1 == new_token_ids.size();
    out.token_ids.push_back(id);
    if (child.reasoning) child.reasoning->append(id);
    if (i < output.new_logprobs->size()) {
      PositionLogprobs& logprobs = output.new_logprobs.edit()[i];
      *out.cumulative_logprob += logprobs.at(0).logprob;
      out.logprobs.push_back(std::move(logprobs));
    }
    if (!child.detokenizer || (is_stop && !state.params.include_stop_str_in_output)) continue;
    child.detokenizer->append({&id, 1}, out.text);
    if (!state.stop_strings) continue;
    if (out.token_ids.size() < static_cast<size_t>(state.params.min_tokens)) {
      child.num_searched = out.text.size();  // a stop string may not begin in this text any more
      continue;
    }
    // Tokens past a stop string are dropped and not counted.
    if (find_stop_string(state, child)) {
      forget(state, child);
      if (output.finish_reason == FinishReason::kNone) to_abort.push_back(child.id);
      return;
    }
  }
  if (output.finish_reason == FinishReason::kNone) return;
  if (child.detokenizer) {
    child.detokenizer->finish(out.text);
    if (state.stop_strings) find_stop_string(state, child);
  }
  if (!out.finished()) {
    out.finish_reason = output.finish_reason;
    out.error = output.error.take();
    if (output.stop_token_id) out.stop_reason = *output.stop_token_id;
  }
  forget(state, child);
}

void OutputProcessor::forget(const State& state, const Child& child) {
  children_.erase(child.id);
  if (state.lora_id != 0) loras_.remove(state.lora_id, 1);
}

// Looks for the earliest stop string in what is new. Found: cuts the text and finishes the completion.
bool OutputProcessor::find_stop_string(State& state, Child& child) {
  std::string& text = child.output.text;
  const auto match = state.stop_strings->search(text, child.num_searched, child.stop_state);
  child.num_searched = text.size();
  if (!match) return false;
  const std::string& which = state.params.stop[match->index];
  text.resize(match->begin + (state.params.include_stop_str_in_output ? which.size() : 0));
  child.output.finish_reason = FinishReason::kStop;
  child.output.stop_reason = which;
  return true;
}

void OutputProcessor::deliver(State& state, std::vector<Delivery>& deliveries) {
  state.changed = false;
  const bool finished = std::all_of(state.children.begin(), state.children.end(),
                                    [](const Child& child) { return child.output.finished(); });
  if (finished || state.params.output_kind != RequestOutputKind::kFinalOnly) {
    count_reasoning(state);
    RequestOutput output = make_output(state, finished);
    if (finished || !output.outputs.empty()) deliveries.push_back({std::move(output), state.callback});
  }
  if (finished) {
    num_unfinished_tokens_ -= state.num_tokens();
    requests_.erase(state.request_id);
  }
}

RequestOutput OutputProcessor::make_output(State& state, bool finished) const {
  RequestOutput output;
  output.request_id = state.request_id;
  output.prompt = state.prompt;
  output.prompt_token_ids = state.prompt_token_ids;
  output.num_cached_tokens = state.num_cached_tokens;
  output.prompt_logprobs = state.prompt_logprobs;
  if (state.params.output_kind == RequestOutputKind::kDelta) state.prompt_logprobs.reset();
  output.finished = finished;
  output.metrics = metrics_of(state);
  output.usage = usage_of(state, output.metrics.num_generation_tokens);
  for (Child& child : state.children) {
    if (state.params.output_kind != RequestOutputKind::kDelta) {
      output.outputs.push_back(finished ? std::move(child.output) : child.output);
      continue;
    }
    if (!child.changed) continue;
    child.changed = false;
    CompletionOutput& all = child.output;
    // What may be the beginning of a stop string is shown once that is decided.
    const bool may_stop = state.stop_strings && !all.finished();
    const size_t text_end =
        all.text.size() - (may_stop ? state.stop_strings->num_pending_bytes(child.stop_state) : 0);
    CompletionOutput delta;
    delta.index = all.index;
    delta.text = all.text.substr(child.num_text_sent, text_end - child.num_text_sent);
    const auto first = static_cast<std::ptrdiff_t>(child.num_tokens_sent);
    delta.token_ids.assign(all.token_ids.begin() + first, all.token_ids.end());
    delta.logprobs = std::exchange(all.logprobs, {});  // the largest part of an output: not kept
    delta.cumulative_logprob = all.cumulative_logprob;
    delta.num_reasoning_tokens = all.num_reasoning_tokens;
    delta.finish_reason = all.finish_reason;
    delta.stop_reason = all.stop_reason;
    delta.error = all.error;
    child.num_text_sent = text_end;
    child.num_tokens_sent = all.token_ids.size();
    output.outputs.push_back(std::move(delta));
  }
  return output;
}

RequestMetrics OutputProcessor::metrics_of(const State& state) const {
  RequestMetrics metrics = state.children.front().metrics;
  const auto first = [](double a, double b) {
    return a == 0.0 || b == 0.0 ? std::max(a, b) : std::min(a, b);
  };
  double decode_time = 0.0;
  int32_t num_later_tokens = 0;
  for (const Child& child : state.children) {
    decode_time += child.metrics.decode_time();
    num_later_tokens += std::max(child.metrics.num_generation_tokens - 1, 0);
  }
  if (num_later_tokens > 0) metrics.mean_time_per_output_token = decode_time / num_later_tokens;
  for (size_t i = 1; i < state.children.size(); ++i) {
    const RequestMetrics& other = state.children[i].metrics;
    metrics.first_scheduled_time = first(metrics.first_scheduled_time, other.first_scheduled_time);
    metrics.first_token_time = first(metrics.first_token_time, other.first_token_time);
    metrics.last_token_time = std::max(metrics.last_token_time, other.last_token_time);
    metrics.num_generation_tokens += other.num_generation_tokens;
  }
  return metrics;
}

// Called when a completion has ended: of the last one to do so, the request has.
void OutputProcessor::record_end_of(const State& state) {
  int32_t longest = 0;
  for (const Child& child : state.children) {
    if (!child.output.finished()) return;
    longest = std::max(longest, child.metrics.num_generation_tokens);
  }
  metrics_.record_request_end(state.params, longest);
}

void OutputProcessor::count_reasoning(State& state) {
  for (Child& child : state.children)
    if (child.reasoning) child.output.num_reasoning_tokens = child.reasoning->count(child.output.finished());
}

RequestUsage OutputProcessor::usage_of(const State& state, int32_t num_generation_tokens) {
  RequestUsage usage;
  usage.num_prompt_tokens = state.num_prompt_tokens();
  usage.num_cached_tokens = state.num_cached_tokens;
  usage.num_generation_tokens = num_generation_tokens;
  for (const Child& child : state.children) usage.num_reasoning_tokens += child.output.num_reasoning_tokens;
  return usage;
}

bool OutputProcessor::finish_request(const std::string& request_id, FinishReason reason,
                                     const std::string& error, std::vector<Delivery>& deliveries,
                                     std::vector<RequestId>& to_abort) {
  const auto found = requests_.find(request_id);
  if (found == requests_.end()) return false;
  State& state = *found->second;
  if (state.changed) std::erase(changed_, &state);
  const double now = EngineCore::steady_seconds();
  bool was_unfinished = false;
  for (Child& child : state.children) {
    if (child.output.finished()) continue;
    was_unfinished = true;
    if (child.detokenizer) child.detokenizer->finish(child.output.text);
    child.output.finish_reason = reason;
    child.output.error = error;
    child.changed = true;
    forget(state, child);
    to_abort.push_back(child.id);
    metrics_.record_finish(child.metrics, reason, state.num_prompt_tokens(), state.params, now);
  }
  set_waits_for_lora(state, false);
  if (was_unfinished) record_end_of(state);
  deliver(state, deliveries);
  return true;
}

void OutputProcessor::drop_request(const std::string& request_id) {
  const auto found = requests_.find(request_id);
  QUIRE_CHECK(found != requests_.end() && !found->second->changed, "request ", request_id, " is accepted");
  for (const Child& child : found->second->children) forget(*found->second, child);
  set_waits_for_lora(*found->second, false);
  num_unfinished_tokens_ -= found->second->num_tokens();
  requests_.erase(found);
}

void OutputProcessor::begin_wait_for_lora(const std::string& request_id) {
  set_waits_for_lora(*requests_.at(request_id), true);
}

void OutputProcessor::end_wait_for_lora(const std::string& request_id) {
  set_waits_for_lora(*requests_.at(request_id), false);
}

void OutputProcessor::set_waits_for_lora(State& state, bool waits) {
  if (state.waits_for_lora == waits) return;
  state.waits_for_lora = waits;
  const int32_t num_reqs = waits ? state.num_core_requests() : -state.num_core_requests();
  num_waiting_for_lora_ += num_reqs;
  num_tokens_waiting_for_lora_ += int64_t{num_reqs} * state.num_prompt_tokens();
  metrics_.record_waiting_for_lora(num_waiting_for_lora_);
}

void OutputProcessor::begin_report() {
  if (!metrics_.has_sink()) return;
  if (auto changed = loras_.take_change()) metrics_.record_lora_requests(std::move(*changed));
  metrics_.begin_report();
}

size_t OutputProcessor::num_kept_logprobs() const {
  size_t sum = 0;
  for (const auto& [id, state] : requests_)
    for (const Child& child : state->children) sum += child.output.logprobs.size();
  return sum;
}

std::vector<std::string> OutputProcessor::request_ids() const {
  std::vector<std::string> ids;
  for (const auto& [id, state] : requests_) ids.push_back(id);
  return ids;
}

}  // namespace quire
