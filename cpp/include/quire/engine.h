// The engine: prompts in, streamed completions out.
//
//   quire::EngineConfig config;
//   config.model = "path/to/model";
//   quire::Engine engine(config);
//   auto outputs = engine.generate({{.prompt = "Once upon a time"}});
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "quire/chat_template.h"
#include "quire/engine_config.h"
#include "quire/error.h"
#include "quire/expert_load.h"
#include "quire/field.h"
#include "quire/kv_events.h"
#include "quire/lora.h"
#include "quire/memory_plan.h"
#include "quire/request_output.h"
#include "quire/sampling_params.h"
#include "quire/tokenizer.h"
#include "quire/weights.h"

namespace quire {

// Memory that engines of one process share, through EngineConfig::kv_arena: each is sure of what one sequence
// of its max_model_len needs, and lends the rest to whoever needs it. Throws InvalidArgument unless bytes >
// 0.
QUIRE_API std::shared_ptr<KVArena> make_kv_arena(int64_t bytes);

// Give `prompt` or `prompt_token_ids`, not both.
struct EngineRequest {
  std::string request_id;  // empty: one is made up; else unique among unfinished requests
  std::string prompt;
  std::vector<int32_t> prompt_token_ids;
  SamplingParams sampling_params;

  // How it is served; each field's meaning and range is in the table below.
  int32_t priority = 0;
  int64_t deadline_ms = 0;
  int64_t queue_timeout_ms = 0;
  std::string user;
  std::string cache_salt;
  bool add_special_tokens = true;
  std::string lora_name;
};

// How a request is served, in the order of the struct: what every door knows of it.
inline constexpr std::tuple kEngineRequestFields{
    Field{"priority", &EngineRequest::priority,
          "with scheduling_policy \"priority\": a lower value is served first"},
    Field{"deadline_ms", &EngineRequest::deadline_ms,
          "ends it when it is not finished this long after it came",
          at_least(0, "at least 1, or 0 for no deadline")},
    Field{"queue_timeout_ms", &EngineRequest::queue_timeout_ms,
          "ends it when its first step is not scheduled this long after it came",
          at_least(0, "at least 1, or 0 for no timeout"), Also::kNothing, SetBy::kCode},
    Field{"user", &EngineRequest::user, "with scheduling_policy \"fair\": whose share it counts to"},
    Field{"cache_salt", &EngineRequest::cache_salt, "prompts share cached prefixes only under the same salt"},
    Field{"add_special_tokens", &EngineRequest::add_special_tokens,
          "BOS and the like around a text prompt; a rendered chat has its own"},
    Field{"lora_name", &EngineRequest::lora_name,
          "the adapter, of those that were added, that computes with the model; empty: none"},
};

// Called once per step for each request with news, on the engine's output thread. When it is slow, and
// several steps wait, it is called once for all of them: with one longer delta, or the latest of what there
// is. It must return soon and must not call back into the engine except abort_request. The last call has
// `finished` set.
using OutputCallback = std::function<void(RequestOutput&&)>;

struct ModelDescription {
  std::string architecture;
  std::string dtype;
  std::string backend;
  int32_t vocab_size = 0;
  int32_t max_model_len = 0;
  std::vector<int32_t> eos_token_ids;
  RankMemory memory;  // what each rank has taken, or set aside
};

struct EngineStats {
  uint64_t num_steps = 0;
  int32_t num_running_reqs = 0;
  int32_t num_waiting_reqs = 0;    // those whose adapter is being read included
  int64_t num_waiting_tokens = 0;  // prompt tokens of waiting requests
  int32_t num_free_blocks = 0;     // memory that other engines could lend counts as free
  int32_t num_total_blocks = 0;
  double kv_cache_usage = 0.0;  // [0, 1]: part of the blocks that this engine's requests hold
  double kv_cache_waste = 0.0;  // [0, 1]: part of the slots of blocks in use that holds no token
  // Steps of a device that has captured graphs: as one graph, as pieces between the attentions, or kernel by
  // kernel.
  uint64_t num_full_graph_steps = 0;
  uint64_t num_piecewise_graph_steps = 0;
  uint64_t num_eager_steps = 0;
  // Of a mixture of experts: tokens that experts were given, in all layers, and how much more than an even
  // part the busiest of a layer was given in about the last second (1: none; 0: no request runs).
  uint64_t num_expert_tokens = 0;
  double expert_load_imbalance = 0.0;
  uint64_t num_preemptions = 0;
  uint64_t num_scheduled_tokens = 0;
  uint64_t prefix_cache_queries = 0;        // prompt tokens looked up
  uint64_t prefix_cache_hits = 0;           // prompt tokens found
  uint64_t external_prefix_cache_hits = 0;  // tokens that a KV connector had besides
  uint64_t num_generation_tokens = 0;
  uint64_t num_spec_tokens = 0;           // draft tokens verified
  uint64_t num_accepted_spec_tokens = 0;  // draft tokens accepted
  uint64_t num_unknown_aborts = 0;        // aborts of requests that were not there
  uint64_t num_expired_reqs = 0;          // requests ended by their deadline
};

// How an engine pauses.
enum class PauseMode : uint8_t {
  kKeep = 0,  // nothing is computed until it resumes
  kWait = 1,  // running requests go on, waiting ones do not begin
};

// What both engines offer besides requests. In a child that is forked after an engine was made, the engine's
// functions throw Error, and its destructor leaves everything as it is.
class QUIRE_API EngineBase {
 public:
  virtual ~EngineBase();
  EngineBase(const EngineBase&) = delete;
  EngineBase& operator=(const EngineBase&) = delete;

  const ModelDescription& model() const;
  // Null with skip_tokenizer_init.
  std::shared_ptr<const Tokenizer> tokenizer() const;
  // Renders messages (a JSON array of {"role", "content"}) with the directory's chat template. `options_json`
  // is an object: add_generation_prompt (default true), tools, and whatever else the template reads. Throws
  // InvalidArgument when there is no template or a message is malformed. `chat_template` is Jinja to use
  // instead of the directory's.
  std::string apply_chat_template(const std::string& messages_json, const std::string& options_json = "{}",
                                  const std::string& chat_template = "") const;
  std::string apply_chat_template(const std::string& messages_json, const ChatTemplateOptions& options,
                                  const std::string& chat_template = "") const;
  EngineStats stats() const;
  // Of a mixture of experts: one for each layer that has them, in order; else empty. Waits for the steps that
  // run. Throws ResourceExhausted when the engine has ended. Not to be called from an output callback.
  // Thread-safe.
  std::vector<ExpertLoad> expert_loads() const;
  // Why the engine has ended: its requests were finished with kError and it accepts none. Empty while it is
  // alive. Thread-safe.
  std::string dead_error() const;
  // How long the step that runs has taken so far, which tells one that hangs from those that end. 0 while
  // there is nothing to do, while the engine falls asleep, wakes up or takes new weights, and after its end.
  // Never waits for a step. Thread-safe.
  double seconds_since_progress() const;
  // For whoever watches over a server. Throws Error, saying why, when the engine has ended, or when
  // seconds_since_progress() is more than `timeout`. Never waits for a step. Thread-safe.
  void check_health(std::chrono::milliseconds timeout = std::chrono::seconds(5)) const;
  // Forgets all cached prefixes. Returns false, and does nothing, while a request is unfinished.
  bool reset_prefix_cache();

  // Requests are accepted and wait; none is lost. Takes effect before the next step is scheduled.
  void pause(PauseMode mode = PauseMode::kKeep);
  void resume();

  // Gives memory back until wake_up: the KV cache's with all cached prefixes, and the weights'. On a device
  // that is the device's memory; activations, graphs and what ranks exchange stay.
  //   level 1: the weights are kept in host memory. On the CPU they are there already: they are dropped, and
  //            read again when the engine wakes up, if they came from files that have not changed, else they
  //            stay.
  //   level 2: the weights are dropped. wake_up reads them from the directory that they came from last.
  // Requests are refused with ResourceExhausted meanwhile: whether anybody wakes the engine is not known, so
  // none shall wait for that. Answers after wake_up are those of an engine that has not slept. A sleeping
  // engine may be told to sleep at the other level.
  //
  // Throws InvalidArgument for another level, for unfinished requests as `unfinished` says (kKeep is none of
  // them: a request's keys and values go with the KV cache), for kWait with an LLMEngine, whose requests
  // finish in the caller's step(), and while a KV connector holds blocks of finished requests; a connector
  // must not touch the caches of an engine that sleeps. ResourceExhausted when the host has no room for a
  // device's weights: it sleeps then as far as it can, until wake_up. Not to be called from an output
  // callback. Thread-safe.
  void sleep(int32_t level = 1, UnfinishedRequests unfinished = UnfinishedRequests::kRefuse);
  // Takes the memory again: of the parts named by `tags` ("weights", "kv_cache"), or all when there are none.
  // The engine accepts requests when all is back. Does nothing when it is awake. Throws InvalidArgument for
  // another tag, for weights that cannot be had again, and at level 1 for files that have changed since they
  // were loaded; ResourceExhausted when somebody else has taken the memory: the engine sleeps on then, and it
  // may be tried again. Thread-safe.
  void wake_up(const std::vector<std::string>& tags = {});
  // Whether some of it is still to come back. Thread-safe.
  bool is_sleeping() const;

  // Replaces the weights with those of a model directory, or with tensors: of the same model, by the names of
  // its checkpoints, in any dtype that it could be loaded from; the engine's own stays, and so does its
  // tokenizer. All is checked before anything is changed: names, shapes, dtypes, that no value is infinite or
  // NaN, and, of a directory with a config.json, that what both configs say of the model is the same. Cached
  // prefixes are forgotten. Memory, addresses and graphs stay; answers are those of an engine that was made
  // from such a directory. A sleeping engine gets its weights back this way, and sleeps on without its KV
  // cache.
  //
  // Throws InvalidArgument, and leaves everything as it was, for what does not fit (with the nearest name for
  // one that is unknown or missing), for unfinished requests as options.unfinished says, for `partial` where
  // weights have been dropped, and with a kv_connector, whose store has keys and values of the old weights.
  // Should loading fail after that, for a file that changes meanwhile or a device that fails, the weights are
  // gone: the engine sleeps until wake_up or another update_weights. Thread-safe.
  void update_weights(const std::string& directory, const UpdateWeightsOptions& options = {});
  void update_weights(const std::vector<WeightTensor>& tensors, const UpdateWeightsOptions& options = {});

  // Adapters, with enable_lora; all functions throw InvalidArgument without. They may be called while
  // requests run, and stall none: an adapter is read on the thread that asks for it. Thread-safe.
  //
  // Reads an adapter, and all of it is checked against the model: names, shapes, ranks, that no value is
  // infinite or NaN. Requests may name it from then on. Returns false, and does nothing, when it is there
  // already. With load_inplace one of the name is replaced by what its path has now, or stays when that
  // fails: requests that compute with it go on with it, requests to come have the new one. At most
  // max_cpu_loras are held in memory: the one used least recently goes, and is read again, from the same
  // files, when a request wants it, which waits for that alone. Throws InvalidArgument for what is wrong with
  // the directory or does not fit the model, and for a name or number of another adapter; ResourceExhausted
  // when unfinished requests have, or pin_lora holds, all that are in memory, or there is no memory for it.
  bool add_lora(const LoraRequest& request);
  // Requests cannot name it any more; it goes when the last one that has it is over. False when there is
  // none.
  bool remove_lora(const std::string& lora_name);
  // It stays in memory until it is removed. False when there is none. Throws as add_lora.
  bool pin_lora(const std::string& lora_name);
  // In the order they were added.
  std::vector<LoraInfo> list_loras() const;
  // Whether requests may name it. False without enable_lora, too.
  bool has_lora(const std::string& lora_name) const;

  // What happened to cached prefixes since the last call, oldest first; with enable_kv_cache_events. At most
  // the latest 65,536 events are kept: when older ones were dropped, the first one says that all was cleared.
  std::vector<KVCacheEvent> take_kv_events();

  // Writes the flight recorder's contents: what the scheduler was told, and decided, in the last minutes.
  // `quire replay` and `quire trace` read it. Throws InvalidArgument when there is no recorder or the file
  // cannot be written.
  void dump_flight_recorder(const std::string& path);

  // Ends the engine before it is destroyed, for a process that exits while others may still call it: waits
  // for the step that runs, and drops unfinished requests without a callback. Later requests are refused.
  void shutdown();

 protected:
  struct Impl;
  EngineBase(const EngineConfig& config, bool threaded);
  std::unique_ptr<Impl> impl_;
};

// The engine on threads of its own. Thread-safe. Destruction drops unfinished requests without a callback.
class QUIRE_API Engine : public EngineBase {
 public:
  // Loads the model. Throws InvalidArgument for anything wrong with the configuration or the directory.
  explicit Engine(const EngineConfig& config);
  ~Engine() override;

  // Validates, tokenizes and queues. Returns the request's id. Throws InvalidArgument for a bad request,
  // which leaves the engine untouched, and ResourceExhausted when the queue is full or the engine has ended.
  std::string add_request(EngineRequest request, OutputCallback callback);
  // Adds several requests, with one callback each: either all are accepted or none. Of more than one, what is
  // wrong with one of them is an InvalidRequest.
  std::vector<std::string> add_requests(std::vector<EngineRequest> requests,
                                        std::vector<OutputCallback> callbacks);
  // Ends a request: its callback gets what there is, with FinishReason::kAbort, soon after on the output
  // thread. False when it is not there.
  bool abort_request(const std::string& request_id);
  void abort_all_requests();
  // Called on the output thread when the callbacks of a step, or of several that waited together, have been
  // called: for who takes the outputs of many requests at once. It must return soon. One listener; an empty
  // one is none.
  void set_delivery_listener(std::function<void()> listener);
  // Waits for all, in order. Either every request is accepted or none.
  std::vector<RequestOutput> generate(std::vector<EngineRequest> requests);

  // Accepts no request from now on, and waits until all are finished; false when that takes longer than
  // `timeout`. resume() accepts requests again.
  bool drain(std::chrono::milliseconds timeout);
  bool is_draining() const;
};

// The engine without threads: it computes inside step(). Thread-safe: what needs the state that a step
// changes waits until that step has ended.
class QUIRE_API LLMEngine : public EngineBase {
 public:
  explicit LLMEngine(const EngineConfig& config);
  ~LLMEngine() override;

  std::string add_request(EngineRequest request);
  bool abort_request(const std::string& request_id);
  bool has_unfinished_requests() const;
  // One step. What is new or finished, perhaps nothing.
  std::vector<RequestOutput> step();
};

// Collects outputs for a consumer that polls. Deltas of one request that were not taken yet are merged, so
// that what waits never exceeds the requests' own output. Thread-safe.
class QUIRE_API OutputQueue {
 public:
  // `on_arrival` is called, on the thread that brings it, with the first output since all were taken.
  explicit OutputQueue(std::function<void()> on_arrival = {});
  ~OutputQueue();
  OutputQueue(const OutputQueue&) = delete;
  OutputQueue& operator=(const OutputQueue&) = delete;

  // A callback for Engine::add_request of a request with that output_kind. It keeps the queue's state alive.
  OutputCallback callback(RequestOutputKind kind);
  // Everything that waits, oldest first; waits up to `timeout` for the first.
  std::vector<RequestOutput> take(std::chrono::milliseconds timeout);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

// Tells one consumer, an event loop, which of many queues have outputs: through a file descriptor, once for
// all that a delivery of the engine's brought. Thread-safe. It, its engine and its queues may go in any
// order.
class QUIRE_API OutputSelector {
 public:
  // Becomes the engine's delivery listener. Throws Error when the system has no descriptor left.
  explicit OutputSelector(Engine& engine);
  ~OutputSelector();
  OutputSelector(const OutputSelector&) = delete;
  OutputSelector& operator=(const OutputSelector&) = delete;

  // Readable while take() would give something.
  int fileno() const;
  // A queue that arrivals are told of under this key.
  std::shared_ptr<OutputQueue> open(uint64_t key);
  // The keys of the queues that something arrived in, since all that was there had been taken from them.
  std::vector<uint64_t> take();

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace quire
