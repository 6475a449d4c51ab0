// Token ids to outputs: incremental detokenization, stop strings, log-probabilities, deltas.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/lora_meter.h"
#include "engine/metrics_recorder.h"
#include "engine/reasoning_counter.h"
#include "engine/stop_strings.h"
#include "messages/engine_core_messages.h"
#include "quire/engine.h"
#include "quire/tokenizer.h"

namespace quire {

// On the client's side of the engine core. Not thread-safe: the front end holds a lock.
class OutputProcessor {
 public:
  // Null: no text, and nobody who is told what was measured.
  explicit OutputProcessor(std::shared_ptr<const Tokenizer> tokenizer,
                           std::shared_ptr<MetricSink> metric_sink = nullptr,
                           ReasoningTokens reasoning_tokens = {}, int32_t max_loras = 0)
      : tokenizer_(std::move(tokenizer)),
        reasoning_tokens_(std::move(reasoning_tokens)),
        loras_(max_loras),
        metrics_(std::move(metric_sink)) {}

  // Opens a request, of which all but its id is taken, with one child in the engine core for each completion.
  // `callback` may be empty; `stop_strings` are those of `request`, null when it has none.
  void add_request(EngineRequest&& request, const std::vector<EngineCoreRequest>& children,
                   OutputCallback callback, std::unique_ptr<const StopStrings> stop_strings);

  struct Delivery {
    RequestOutput output;
    OutputCallback callback;
  };

  // Takes one step's results; of `outputs`, log-probabilities and errors are taken, the buffers stay. Appends
  // to `to_abort` the children that a stop string ended, which the engine core does not know about.
  void process_outputs(EngineCoreOutputs&& outputs, std::vector<RequestId>& to_abort);
  // Appends what the steps since the last call made due, once per request however many they were. Until then
  // a request that they finished is still there.
  void deliver(std::vector<Delivery>& deliveries);

  // Ends a request with `reason`, and delivers all that it still has. Returns false when it is not there.
  bool finish_request(const std::string& request_id, FinishReason reason, const std::string& error,
                      std::vector<Delivery>& deliveries, std::vector<RequestId>& to_abort);
  // Forgets a request that was never accepted. It is there, and no step knows it.
  void drop_request(const std::string& request_id);

  MetricsRecorder& metrics() { return metrics_; }
  // Takes what was recorded since the last call, for metrics().report().
  void begin_report();

  // The engine core does not have a request yet: its adapter is being read. Until `end_wait_for_lora`, or its
  // end.
  void begin_wait_for_lora(const std::string& request_id);
  void end_wait_for_lora(const std::string& request_id);
  // Requests that the engine core does not have yet, and their prompt tokens.
  int32_t num_waiting_for_lora() const { return num_waiting_for_lora_; }
  int64_t num_tokens_waiting_for_lora() const { return num_tokens_waiting_for_lora_; }

  bool has_request(const std::string& request_id) const { return requests_.contains(request_id); }
  // Whether the request is there that it is one of.
  bool has_completion(RequestId id) const { return children_.contains(id); }
  size_t num_unfinished_requests() const { return requests_.size(); }
  size_t num_unfinished_completions() const { return children_.size(); }
  // Positions of unfinished requests.
  size_t num_kept_logprobs() const;
  // Prompt tokens of unfinished requests, once for each completion.
  int64_t num_unfinished_tokens() const { return num_unfinished_tokens_; }
  std::vector<std::string> request_ids() const;

 private:
  // One completion.
  struct Child {
    RequestId id = 0;
    CompletionOutput output;  // all of it so far, but log-probabilities that were delivered as deltas
    std::unique_ptr<IncrementalDetokenizer> detokenizer;
    std::optional<ReasoningCounter> reasoning;
    RequestMetrics metrics;
    size_t num_text_sent = 0, num_tokens_sent = 0;
    size_t num_searched = 0;  // bytes of text: no stop string ends in them
    StopStrings::State stop_state = 0;
    bool changed = false;
  };
  struct State {
    int32_t num_prompt_tokens() const { return static_cast<int32_t>(prompt_token_ids->size()); }
    int64_t num_tokens() const { return static_cast<int64_t>(prompt_token_ids->size() * children.size()); }
    // What it is to the engine core at first: a search is one request there.
    int32_t num_core_requests() const {
      return params.beam_width > 1 ? 1 : static_cast<int32_t>(children.size());
    }
    std::string request_id;
    std::shared_ptr<const std::string> prompt;
    std::shared_ptr<const std::vector<int32_t>> prompt_token_ids;
    SamplingParams params;
    OutputCallback callback;
    std::vector<Child> children;
    int32_t num_cached_tokens = 0;
    std::shared_ptr<const std::vector<PositionLogprobs>> prompt_logprobs;  // what is to be delivered
    std::unique_ptr<const StopStrings> stop_strings;                       // of params.stop; null without any
    LoraId lora_id = 0;
    bool waits_for_lora = false;
    bool changed = false;
  };

  // A completion ended.
  void forget(const State& state, const Child& child);
  void set_waits_for_lora(State& state, bool waits);
  void append(State& state, Child& child, EngineCoreOutput& output, std::span<const int32_t> new_token_ids,
              std::vector<RequestId>& to_abort);
  bool find_stop_string(State& state, Child& child);
  RequestOutput make_output(State& state, bool finished) const;
  RequestMetrics metrics_of(const State& state) const;
  void record_end_of(const State& state);
  static void count_reasoning(State& state);
  static RequestUsage usage_of(const State& state, int32_t num_generation_tokens);
  void deliver(State& state, std::vector<Delivery>& deliveries);

  std::shared_ptr<const Tokenizer> tokenizer_;
  const ReasoningTokens reasoning_tokens_;
  std::unordered_map<std::string, std::unique_ptr<State>> requests_;
  std::unordered_map<RequestId, std::pair<State*, size_t>> children_;
  std::vector<State*> changed_;  // since the last deliver()
  int64_t num_unfinished_tokens_ = 0;
  int32_t num_waiting_for_lora_ = 0;
  int64_t num_tokens_waiting_for_lora_ = 0;
  LoraMeter loras_;
  MetricsRecorder metrics_;
};

}  // namespace quire
