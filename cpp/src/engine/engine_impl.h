// What both engines are made of.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "engine/admission.h"
#include "engine/engine_core_client.h"
#include "engine/generation_config.h"
#include "engine/input_processor.h"
#include "engine/kv_cache_demand.h"
#include "engine/lora_registry.h"
#include "engine/output_processor.h"
#include "grammar/structured_output_manager.h"
#include "quire/chat_template.h"
#include "quire/engine.h"
#include "quire/logits_processor.h"
#include "quire/model_directory.h"
#include "util/log.h"
#include "util/owner_process.h"
#include "util/str.h"

namespace quire {

// The client's side of the engine core: validation and tokenization in, detokenization out.
struct EngineBase::Impl {
  Impl(const EngineConfig& engine_config, bool threaded)
      : is_threaded(threaded),
        config((engine_config.validate(), locate_model(engine_config))),
        metric_sink_hold(config.metric_sink) {
    check_model(config);  // first: of a model that cannot be run the tokenizer does not matter
    check_generation_config(config);
    if (!config.kv_connector.empty()) find_kv_connector(config.kv_connector);
    find_logits_processors(config.logits_processors, config.own_logits_processors);
    if (!config.skip_tokenizer_init) tokenizer = Tokenizer::load(tokenizer_directory());
    const auto make_core = [this](std::function<void()> wake) {
      SchedulerParts parts;
      parts.wake = std::move(wake);
      auto executor = make_local_executor(config);
      if (LoraLoader* loader = executor->lora_loader()) {
        loras = std::make_unique<LoraRegistry>(
            *loader, config.max_cpu_loras > 0 ? config.max_cpu_loras : config.max_loras,
            // Names of prefixes are compared with those of other engines.
            !config.kv_connector.empty() || !config.prefix_caching_hash_seed.empty());
      }
      parts.structured_output_manager = make_grammars(executor->model_info());
      return std::make_unique<EngineCore>(config, std::move(executor), std::move(parts));
    };
    client = threaded ? make_threaded_client(make_core, /*reports_stats=*/config.metric_sink != nullptr)
                      : make_inline_client(make_core({}));
    const ModelInfo& info = client->model_info();
    // What was left open.
    config.max_num_seqs = seqs_at_once(config, info, client->stats().num_total_blocks);
    config.max_num_batched_tokens = info.max_num_batched_tokens;
    const auto eos = read_eos_token_ids(config, info.vocab_size);
    description = {info.architecture,  info.dtype, info.backend, info.vocab_size,
                   info.max_model_len, eos,        info.memory};
    input_processor = std::make_unique<InputProcessor>(info, eos, tokenizer, grammar_compiler, config);
    output_processor = std::make_unique<OutputProcessor>(
        tokenizer, config.metric_sink,
        ReasoningTokens{config.think_start_token_ids, config.think_end_token_ids}, config.max_loras);
    if (config.metric_sink) {
      if (loras) config.metric_sink->set_lora_requests({config.max_loras, {}, {}});
      config.metric_sink->set_cache_config({config.block_size, client->stats().num_total_blocks + 1,
                                            info.dtype, config.enable_prefix_caching,
                                            config.kv_arena != nullptr, config.gpu_memory_utilization});
    }
  }

  // Requests that go with the core give adapters back.
  ~Impl() {
    if (loras) loras->close();
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  const std::string& tokenizer_directory() const {
    return config.tokenizer.empty() ? config.model : config.tokenizer;
  }

  // Null where there can be none: requests that want it are refused at the door.
  std::shared_ptr<StructuredOutputManager> make_grammars(const ModelInfo& model) {
    if (!tokenizer || !has_grammar_compiler()) return nullptr;
    GrammarLimits limits;
    limits.max_shared_bytes = config.structured_output_cache_bytes / 4;
    grammar_compiler = make_grammar_compiler(tokenizer, model.vocab_size,
                                             read_eos_token_ids(config, model.vocab_size), limits);
    StructuredOutputConfig structured;
    structured.vocab_size = model.vocab_size;
    structured.max_cache_bytes = config.structured_output_cache_bytes - limits.max_shared_bytes;
    structured.tokenizer = tokenizer;
    structured.num_jump_forward_tokens = config.num_jump_forward_tokens;
    if (!config.enable_in_reasoning)
      structured.think_tokens = {config.think_start_token_ids, config.think_end_token_ids};
    const auto num_cores = static_cast<int32_t>(std::thread::hardware_concurrency());
    structured.num_threads = config.structured_output_threads > 0 ? config.structured_output_threads
                                                                  : std::clamp(num_cores / 2, 1, 8);
    return make_structured_output_manager(grammar_compiler, structured);
  }

  // Everything that can fail for a request, before anything of it is in the engine.
  struct Prepared {
    EngineRequest request;
    std::vector<EngineCoreRequest> children;
    OutputCallback callback;
    std::unique_ptr<const StopStrings> stop_strings;
    std::shared_ptr<const LoraRegistry::Use> lora;  // null: none
  };
  Prepared prepare(EngineRequest request, OutputCallback callback) {
    owner.check();
    if (request.request_id.empty()) request.request_id = str("request-", ++num_made_up_ids);
    auto children = input_processor->process(request);
    auto lora = request.lora_name.empty() ? nullptr : adapters().use(request.lora_name);
    if (lora && !is_threaded) loras->load_now(*lora);
    for (EngineCoreRequest& child : children) {
      if (!lora) break;
      child.lora_name = request.lora_name;
      child.lora_id = lora->id();
      child.lora_fingerprint = lora->fingerprint();
      child.lora_int_id = lora->lora_int_id();
      child.lora_use = lora;
    }
    const std::vector<std::string>& stop = request.sampling_params.stop;
    auto stop_strings = stop.empty() ? nullptr : std::make_unique<const StopStrings>(stop);
    return {std::move(request), std::move(children), std::move(callback), std::move(stop_strings),
            std::move(lora)};
  }

  LoraRegistry& adapters() {
    owner.check();
    if (!loras) throw InvalidArgument("the engine has no adapters: set enable_lora");
    return *loras;
  }

  // Called with the mutex held. Throws ResourceExhausted when there is no room, or not enough time, for all
  // of them.
  void admit(const std::vector<Prepared>& batch) {
    admission.num_unfinished_reqs = static_cast<int64_t>(output_processor->num_unfinished_completions());
    admission.num_unfinished_tokens = output_processor->num_unfinished_tokens();
    admission.num_waiting_for_lora = output_processor->num_waiting_for_lora();
    admission.num_tokens_waiting_for_lora = output_processor->num_tokens_waiting_for_lora();
    admission.stats = client->stats();
    std::vector<AdmissionRequest> requests;
    for (const Prepared& prepared : batch) {
      requests.push_back(
          {static_cast<int64_t>(prepared.children.at(0).prompt_token_ids->size()),
           std::max(prepared.request.sampling_params.n, prepared.request.sampling_params.beam_width),
           prepared.request.deadline_ms, prepared.lora && !loras->has_not_to_wait(*prepared.lora)});
    }
    check_admission(config, admission, requests);
  }

  // All or none.
  void submit(std::vector<Prepared> batch) {
    const std::lock_guard lock(mutex);
    if (!error.empty()) throw ResourceExhausted("the engine has ended: " + error);
    for (size_t i = 0; i < batch.size(); ++i) {
      const std::string& id = batch[i].request.request_id;
      const bool twice = std::any_of(batch.begin(), batch.begin() + static_cast<std::ptrdiff_t>(i),
                                     [&](const Prepared& other) { return other.request.request_id == id; });
      if (twice || output_processor->has_request(id)) {
        throw InvalidArgument(
            str("request_id '", id, "' is in use; wait until it is finished, or choose another"));
      }
    }
    admit(batch);
    size_t num_registered = 0;
    bool has_to_wait = false;
    std::vector<EngineCoreRequest> ready;
    try {
      for (Prepared& prepared : batch) {
        for (EngineCoreRequest& child : prepared.children) child.request_id = ++num_children;
        const std::string id = prepared.request.request_id;
        output_processor->add_request(std::move(prepared.request), prepared.children,
                                      std::move(prepared.callback), std::move(prepared.stop_strings));
        ++num_registered;
        // A search is one request to the engine core, whose answers have the ids that follow.
        if (prepared.children[0].sampling_params->beam_width > 1) prepared.children.resize(1);
        if (prepared.lora && !is_there(prepared, id)) {
          output_processor->begin_wait_for_lora(id);
          waiting_for_lora[id] = prepared.lora;
          has_to_wait = true;
          continue;
        }
        std::ranges::move(prepared.children, std::back_inserter(ready));
      }
      send(std::move(ready));
      // Nothing that the core does tells the sink of them.
      if (has_to_wait && config.metric_sink) client->abort_requests({});
    } catch (...) {
      // The engine core ended in between. Nobody hears of what was registered.
      for (size_t i = 0; i < num_registered; ++i) {
        output_processor->drop_request(batch[i].request.request_id);
        waiting_for_lora.erase(batch[i].request.request_id);
      }
      throw;
    }
  }

  // To the engine core, with the mutex held.
  void send(std::vector<EngineCoreRequest> children) {
    for (const EngineCoreRequest& child : children) {
      ++admission.num_submitted_reqs;
      admission.num_submitted_tokens += child.prompt_token_ids->size();
    }
    if (!children.empty()) client->add_requests(std::move(children));
  }

  // The one of a request's two times that comes first, as the core says it.
  static std::string what_has_passed(const EngineCoreRequest& request) {
    const bool is_queues =
        request.queue_deadline > 0 && (request.deadline <= 0 || request.queue_deadline < request.deadline);
    if (is_queues) return "queue_timeout_ms has passed before its first step";
    const double seconds = request.deadline - request.arrival_time;
    return str("deadline_ms ", static_cast<int64_t>(seconds * 1000 + 0.5), " has passed");
  }

  // Whether a request's adapter is in memory. Else the core gets the request when it is; it waits for that
  // alone.
  bool is_there(const Prepared& prepared, const std::string& id) {
    using Clock = LoraRegistry::Clock;
    const EngineCoreRequest& first = prepared.children[0];
    Clock::time_point until = Clock::time_point::max();
    for (const double deadline : {first.deadline, first.queue_deadline}) {
      if (deadline <= 0) continue;
      const std::chrono::duration<double> since_epoch(deadline);
      until = std::min(until, Clock::time_point(std::chrono::duration_cast<Clock::duration>(since_epoch)));
    }
    const auto then = [this, id, children = prepared.children](const std::string& why) {
      std::vector<RequestId> to_abort;
      {
        const std::lock_guard lock(mutex);
        if (!output_processor->has_completion(children[0].request_id)) return;  // it was aborted
        waiting_for_lora.erase(id);
        std::string failure = why;
        try {
          if (failure.empty()) {
            output_processor->end_wait_for_lora(id);
            send(children);
          }
        } catch (const std::exception& ended) {
          failure = ended.what();
        }
        if (failure.empty()) return;
        const bool is_late = failure == LoraRegistry::kTimeIsOver;
        if (is_late) failure = what_has_passed(children[0]);
        output_processor->finish_request(id, is_late ? FinishReason::kAbort : FinishReason::kError, failure,
                                         undelivered, to_abort);
      }
      client->abort_requests({});  // wakes who delivers
    };
    return loras->is_loaded(*prepared.lora, then, until);
  }

  // Takes one step's results.
  void process(EngineCoreOutputs& outputs) {
    std::vector<RequestId> to_abort;
    {
      const std::lock_guard lock(mutex);
      std::string failure = outputs.engine_error;
      try {
        output_processor->process_outputs(std::move(outputs), to_abort);
      } catch (const std::exception& bug) {
        failure = bug.what();
      }
      if (!failure.empty()) {
        error = failure;
        output_processor->deliver(undelivered);
        for (const std::string& id : output_processor->request_ids()) {
          output_processor->finish_request(id, FinishReason::kError, error, undelivered, to_abort);
        }
        output_processor->metrics().record_end();
      }
      keep_kv_events(outputs.kv_events);
    }
    if (!to_abort.empty()) client->abort_requests(std::move(to_abort));
  }

  // What the steps since the last call gave, and what ended otherwise meanwhile, in the order their callbacks
  // are to hear of it. The callbacks, like the metric sink, run without the lock, so that one may abort. True
  // the one time when the engine has ended.
  bool deliver(std::vector<OutputProcessor::Delivery>& deliveries) {
    deliveries.clear();
    std::string died_of;
    {
      const std::lock_guard lock(mutex);
      if (!error.empty() && !std::exchange(death_is_told, true)) died_of = error;
      output_processor->deliver(deliveries);
      for (auto& delivery : undelivered) deliveries.push_back(std::move(delivery));
      undelivered.clear();
      delivering = !deliveries.empty();
      output_processor->begin_report();
    }
    output_processor->metrics().report();
    if (died_of.empty()) return false;
    try {
      if (config.on_dead) config.on_dead(died_of);
    } catch (const std::exception& failure) {
      log(LogLevel::kError, "on_dead threw: ", failure.what());
    }
    return true;
  }

  void finish_delivery() {
    {
      const std::lock_guard lock(listener_mutex);
      if (delivery_listener) delivery_listener();
    }
    const std::lock_guard lock(mutex);
    delivering = false;
    drained.notify_all();
  }

  // Called with the mutex held. Of events that nobody takes the oldest go: who comes late must start afresh.
  void keep_kv_events(std::vector<KVCacheEvent>& events) {
    constexpr size_t kMaxKVEvents = 65536;
    for (KVCacheEvent& event : events) kv_events.push_back(std::move(event));
    if (kv_events.size() <= kMaxKVEvents) return;
    kv_events.erase(kv_events.begin(), kv_events.end() - kMaxKVEvents / 2);
    kv_events.emplace_front();
    kv_events.front().kind = KVCacheEventKind::kAllBlocksCleared;
  }

  // The last output waits for the output thread, or the next step: behind those on their way.
  bool abort(const std::string& request_id) {
    owner.check();
    std::vector<RequestId> to_abort;
    std::shared_ptr<const LoraRegistry::Use> awaited;
    {
      const std::lock_guard lock(mutex);
      if (!output_processor->finish_request(request_id, FinishReason::kAbort, "", undelivered, to_abort)) {
        ++num_unknown_aborts;
        return false;
      }
      if (auto waits = waiting_for_lora.extract(request_id)) awaited = std::move(waits.mapped());
    }
    if (awaited) loras->stop_waiting(*awaited);
    client->abort_requests(std::move(to_abort));
    return true;
  }

  // Accepts no request for the time that it lives, and leaves none unfinished; see UnfinishedRequests.
  class Closed {
   public:
    Closed(Impl& impl, std::string why, UnfinishedRequests unfinished);
    ~Closed();
    Closed(const Closed&) = delete;
    Closed& operator=(const Closed&) = delete;

   private:
    Impl& impl_;
  };
  // Called with the mutex held: what the engine's sleep says of requests.
  void update_closed();
  // Runs it on the core when no request is left there: what has ended here may still be on its way.
  [[gnu::visibility("hidden")]] void call_idle(const std::function<void(EngineCore&)>& task);
  void update_weights(const WeightSource& source, const UpdateWeightsOptions& options);

  // Refuses the core after a fork.
  EngineCoreClient& core() const {
    owner.check();
    return *client;
  }

  // The directory's, unless `source` is another.
  std::shared_ptr<const ChatTemplate> chat_template_for(const std::string& source) {
    owner.check();
    if (!source.empty()) return given_chat_template(source);
    // On first use: a directory without a chat template can still complete text.
    std::call_once(chat_template_once, [this] { chat_template = ChatTemplate::load(tokenizer_directory()); });
    return chat_template;
  }

  // A template other than the directory's: the latest, since whoever brings one brings it again.
  std::shared_ptr<const ChatTemplate> given_chat_template(const std::string& source) {
    const std::lock_guard lock(chat_template_mutex);
    if (!other_chat_template || other_chat_template_source != source) {
      other_chat_template = ChatTemplate::load(tokenizer_directory(), source);
      other_chat_template_source = source;
    }
    return other_chat_template;
  }

  void shut_down() {
    is_shut_down = true;
    client->close();
    const std::lock_guard lock(shutdown_mutex);
    if (loras) loras->close();
    if (output_thread.joinable()) output_thread.join();
  }

  const OwnerProcess owner;
  const bool is_threaded;
  EngineConfig config;
  const MetricSinkHold metric_sink_hold;  // before what tells the sink, which ends first
  std::shared_ptr<const Tokenizer> tokenizer;
  std::shared_ptr<GrammarCompiler> grammar_compiler;  // null: none
  std::unique_ptr<LoraRegistry> loras;                // null: there are none
  std::unordered_map<std::string, std::shared_ptr<const LoraRegistry::Use>> waiting_for_lora;
  std::unique_ptr<EngineCoreClient> client;
  ModelDescription description;
  std::unique_ptr<InputProcessor> input_processor;
  std::once_flag chat_template_once;
  std::shared_ptr<const ChatTemplate> chat_template;
  std::mutex chat_template_mutex;
  std::string other_chat_template_source;
  std::shared_ptr<const ChatTemplate> other_chat_template;

  std::mutex memory_mutex;  // held by who changes the two below, or the weights; taken before `mutex`
  std::mutex mutex;         // guards what follows
  bool weights_are_gone = false, kv_cache_is_gone = false;
  std::unique_ptr<OutputProcessor> output_processor;
  RequestId num_children = 0;
  std::string error;
  bool death_is_told = false;
  std::atomic<uint64_t> num_made_up_ids{0};
  std::atomic<uint64_t> num_unknown_aborts{0};  // that did not get as far as the engine core

  std::vector<OutputProcessor::Delivery> undelivered;  // of requests that ended outside a step
  AdmissionState admission;
  std::condition_variable drained;  // no request is unfinished, and all outputs are delivered
  bool delivering = false;          // callbacks of a step run
  std::deque<KVCacheEvent> kv_events;

  std::mutex listener_mutex;
  std::function<void()> delivery_listener;

  std::atomic<bool> is_shut_down{false};
  std::mutex shutdown_mutex;
  std::thread output_thread;  // Engine only
  // LLMEngine only: results are taken in the order of their steps, into buffers that are used again.
  std::mutex step_mutex;
  EngineCoreOutputs outputs;
};

}  // namespace quire
