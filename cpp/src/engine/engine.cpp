#include "quire/engine.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <future>
#include <thread>
#include <unordered_map>

#include "engine/admission.h"
#include "engine/engine_core_client.h"
#include "engine/input_processor.h"
#include "engine/output_processor.h"
#include "quire/chat_template.h"
#include "util/check.h"
#include "util/log.h"
#include "util/owner_process.h"
#include "util/thread_name.h"

namespace quire {

std::shared_ptr<KVArena> make_kv_arena(int64_t bytes) { return std::make_shared<KVArena>(bytes); }

// The client's side of the engine core: validation and tokenization in, detokenization out.
struct EngineBase::Impl {
  Impl(const EngineConfig& engine_config, bool threaded) : config((engine_config.validate(), engine_config)) {
    check_model(config);  // whose model cannot be run need not hear of its tokenizer
    if (!config.skip_tokenizer_init) tokenizer = Tokenizer::load(config.model);
    const auto make_core = [this](std::function<void()> wake) {
      SchedulerParts parts;
      parts.wake = std::move(wake);
      return std::make_unique<EngineCore>(config, make_local_executor(config), std::move(parts));
    };
    client = threaded ? make_threaded_client(make_core, /*reports_stats=*/config.metric_sink != nullptr)
                      : make_inline_client(make_core({}));
    const ModelInfo& info = client->model_info();
    const auto eos = read_eos_token_ids(config.model, info.vocab_size);
    description = {info.architecture, info.dtype, info.backend, info.vocab_size, info.max_model_len, eos};
    input_processor = std::make_unique<InputProcessor>(info, eos, tokenizer, config);
    output_processor = std::make_unique<OutputProcessor>(tokenizer, config.metric_sink);
  }

  // Everything that can fail for a request, before anything of it is in the engine.
  struct Prepared {
    EngineRequest request;
    std::vector<EngineCoreRequest> children;
    OutputCallback callback;
    std::unique_ptr<const StopStrings> stop_strings;
  };
  Prepared prepare(EngineRequest request, OutputCallback callback) {
    owner.check();
    if (request.request_id.empty()) request.request_id = str("request-", ++num_made_up_ids);
    auto children = input_processor->process(request);
    const std::vector<std::string>& stop = request.sampling_params.stop;
    auto stop_strings = stop.empty() ? nullptr : std::make_unique<const StopStrings>(stop);
    return {std::move(request), std::move(children), std::move(callback), std::move(stop_strings)};
  }

  // With the mutex held. Throws ResourceExhausted when there is no room, or not enough time, for all of them.
  void admit(const std::vector<Prepared>& batch) {
    admission.num_unfinished_reqs = static_cast<int64_t>(output_processor->num_unfinished_completions());
    admission.num_unfinished_tokens = output_processor->num_unfinished_tokens();
    admission.stats = client->stats();
    std::vector<AdmissionRequest> requests;
    for (const Prepared& prepared : batch) {
      requests.push_back({static_cast<int64_t>(prepared.children.at(0).prompt_token_ids.size()),
                          prepared.request.sampling_params.n, prepared.request.deadline_ms});
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
    try {
      for (Prepared& prepared : batch) {
        for (EngineCoreRequest& child : prepared.children) child.request_id = ++num_children;
        output_processor->add_request(prepared.request, prepared.children, std::move(prepared.callback),
                                      std::move(prepared.stop_strings));
        ++num_registered;
        for (EngineCoreRequest& child : prepared.children) {
          ++admission.num_submitted_reqs;
          admission.num_submitted_tokens += child.prompt_token_ids.size();
          client->add_request(std::move(child));
        }
      }
    } catch (...) {
      // The engine core ended in between. Nobody hears of what was registered.
      for (size_t i = 0; i < num_registered; ++i) output_processor->drop_request(batch[i].request.request_id);
      throw;
    }
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
      output_processor->metrics().begin_report();
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
    const std::lock_guard lock(mutex);
    delivering = false;
    drained.notify_all();
  }

  // With the mutex held. When nobody takes them, the oldest go, and whoever comes late must start afresh.
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
    {
      const std::lock_guard lock(mutex);
      if (!output_processor->finish_request(request_id, FinishReason::kAbort, "", undelivered, to_abort)) {
        ++num_unknown_aborts;
        return false;
      }
    }
    client->abort_requests(std::move(to_abort));
    return true;
  }

  // Refuses the core after a fork.
  EngineCoreClient& core() const {
    owner.check();
    return *client;
  }

  // A template other than the directory's: the latest, since whoever brings one brings it again.
  std::shared_ptr<const ChatTemplate> given_chat_template(const std::string& source) {
    const std::lock_guard lock(chat_template_mutex);
    if (!other_chat_template || other_chat_template_source != source) {
      other_chat_template = ChatTemplate::load(config.model, source);
      other_chat_template_source = source;
    }
    return other_chat_template;
  }

  void shut_down() {
    client->close();
    const std::lock_guard lock(shutdown_mutex);
    if (output_thread.joinable()) output_thread.join();
  }

  const OwnerProcess owner;
  EngineConfig config;
  std::shared_ptr<const Tokenizer> tokenizer;
  std::unique_ptr<EngineCoreClient> client;
  ModelDescription description;
  std::unique_ptr<InputProcessor> input_processor;
  std::once_flag chat_template_once;
  std::shared_ptr<const ChatTemplate> chat_template;
  std::mutex chat_template_mutex;
  std::string other_chat_template_source;
  std::shared_ptr<const ChatTemplate> other_chat_template;

  std::mutex mutex;  // guards what follows
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

  std::mutex shutdown_mutex;
  std::thread output_thread;  // Engine only
  std::mutex step_mutex;      // LLMEngine only: results are taken in the order of their steps
  EngineCoreOutputs outputs;  // likewise; its buffers are used again
};

EngineBase::EngineBase(const EngineConfig& config, bool threaded)
    : impl_(std::make_unique<Impl>(config, threaded)) {}
EngineBase::~EngineBase() {
  // In a child: the threads to wait for are not there, and locks may be held for ever.
  if (!impl_->owner.is_current()) (void)impl_.release();
}

const ModelDescription& EngineBase::model() const { return impl_->description; }
std::shared_ptr<const Tokenizer> EngineBase::tokenizer() const { return impl_->tokenizer; }

std::string EngineBase::apply_chat_template(const std::string& messages_json, const std::string& options_json,
                                            const std::string& chat_template) const {
  impl_->owner.check();
  if (!chat_template.empty())
    return impl_->given_chat_template(chat_template)->render(messages_json, options_json);
  // On first use: a directory without a chat template can still complete text.
  std::call_once(impl_->chat_template_once,
                 [this] { impl_->chat_template = ChatTemplate::load(impl_->config.model); });
  return impl_->chat_template->render(messages_json, options_json);
}

EngineStats EngineBase::stats() const {
  const SchedulerStats s = impl_->core().stats();
  EngineStats stats;
  stats.num_steps = s.num_steps;
  stats.num_running_reqs = s.num_running_reqs;
  stats.num_waiting_reqs = s.num_waiting_reqs;
  stats.num_waiting_tokens = s.num_waiting_tokens;
  stats.num_free_blocks = s.num_free_blocks;
  stats.num_total_blocks = s.num_total_blocks;
  stats.kv_cache_usage = static_cast<double>(s.num_used_blocks) / std::max(s.num_total_blocks, 1);
  stats.kv_cache_waste = s.num_used_slots > 0
                             ? static_cast<double>(s.num_wasted_slots) / static_cast<double>(s.num_used_slots)
                             : 0.0;
  stats.num_preemptions = s.num_preemptions;
  stats.num_full_graph_steps = s.num_full_graph_steps;
  stats.num_piecewise_graph_steps = s.num_piecewise_graph_steps;
  stats.num_eager_steps = s.num_eager_steps;
  stats.num_scheduled_tokens = s.num_scheduled_tokens;
  stats.prefix_cache_queries = s.prefix_cache_queries;
  stats.prefix_cache_hits = s.prefix_cache_hits;
  stats.num_generation_tokens = s.num_generation_tokens;
  stats.num_spec_tokens = s.num_spec_tokens;
  stats.num_accepted_spec_tokens = s.num_accepted_spec_tokens;
  stats.num_unknown_aborts = s.num_unknown_aborts + impl_->num_unknown_aborts;
  stats.num_expired_reqs = s.num_expired_reqs;
  return stats;
}

std::string EngineBase::dead_error() const {
  impl_->owner.check();
  const std::lock_guard lock(impl_->mutex);
  return impl_->error;
}

bool EngineBase::reset_prefix_cache() { return impl_->core().reset_prefix_cache(); }

void EngineBase::pause(PauseMode mode) {
  impl_->core().set_pause_state(mode == PauseMode::kKeep ? PauseState::kPausedAll : PauseState::kPausedNew);
}

void EngineBase::resume() {
  impl_->owner.check();
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->admission.draining = false;
  }
  impl_->client->set_pause_state(PauseState::kUnpaused);
}

void EngineBase::dump_flight_recorder(const std::string& path) { impl_->core().dump_flight_recorder(path); }

void EngineBase::shutdown() {
  if (impl_->owner.is_current()) impl_->shut_down();
}

std::vector<KVCacheEvent> EngineBase::take_kv_events() {
  impl_->owner.check();
  const std::lock_guard lock(impl_->mutex);
  std::vector<KVCacheEvent> events(std::make_move_iterator(impl_->kv_events.begin()),
                                   std::make_move_iterator(impl_->kv_events.end()));
  impl_->kv_events.clear();
  return events;
}

// Results of this many steps that wait together become one delivery.
constexpr int kMaxMergedSteps = 64;

Engine::Engine(const EngineConfig& config) : EngineBase(config, /*threaded=*/true) {
  impl_->output_thread = std::thread([impl = impl_.get()] {
    name_this_thread("quire-output");
    EngineCoreOutputs outputs;
    std::vector<OutputProcessor::Delivery> deliveries;
    while (impl->client->get_outputs(outputs)) {
      impl->process(outputs);
      // What waits already is told together; bounded, so that a fast engine does not keep it waiting.
      for (int i = 1; i < kMaxMergedSteps && impl->client->try_get_outputs(outputs); ++i)
        impl->process(outputs);
      const bool has_died = impl->deliver(deliveries);
      for (auto& delivery : deliveries) {
        // A callback that throws loses its own output, not the engine.
        try {
          if (delivery.callback) delivery.callback(std::move(delivery.output));
        } catch (const std::exception& error) {
          log(LogLevel::kError, "an output callback threw: ", error.what());
        }
      }
      deliveries.clear();  // what callbacks hold on to goes when their request has ended
      impl->finish_delivery();
      if (!has_died || !impl->config.exit_on_dead) continue;
      log(LogLevel::kError, "exit_on_dead: ending the process");
      kill(getpid(), SIGTERM);
    }
  });
}

Engine::~Engine() { shutdown(); }

std::string Engine::add_request(EngineRequest request, OutputCallback callback) {
  std::vector<EngineRequest> requests;
  std::vector<OutputCallback> callbacks;
  requests.push_back(std::move(request));
  callbacks.push_back(std::move(callback));
  return add_requests(std::move(requests), std::move(callbacks)).front();
}

std::vector<std::string> Engine::add_requests(std::vector<EngineRequest> requests,
                                              std::vector<OutputCallback> callbacks) {
  if (callbacks.size() != requests.size()) {
    throw InvalidArgument(
        str("callbacks has ", callbacks.size(), " entries for ", requests.size(), " requests"));
  }
  std::vector<Impl::Prepared> batch;
  std::vector<std::string> ids;
  for (size_t i = 0; i < requests.size(); ++i) {
    batch.push_back(impl_->prepare(std::move(requests[i]), std::move(callbacks[i])));
    ids.push_back(batch.back().request.request_id);
  }
  impl_->submit(std::move(batch));
  return ids;
}

bool Engine::drain(std::chrono::milliseconds timeout) {
  impl_->owner.check();
  std::unique_lock lock(impl_->mutex);
  impl_->admission.draining = true;
  return impl_->drained.wait_for(lock, timeout, [this] {
    return impl_->output_processor->num_unfinished_requests() == 0 && impl_->undelivered.empty() &&
           !impl_->delivering;
  });
}

bool Engine::abort_request(const std::string& request_id) { return impl_->abort(request_id); }

std::vector<RequestOutput> Engine::generate(std::vector<EngineRequest> requests) {
  struct Wait {
    std::mutex mutex;
    std::condition_variable all_done;
    std::vector<RequestOutput> outputs;
    size_t num_left = 0;
  };
  const auto wait = std::make_shared<Wait>();
  wait->outputs.resize(requests.size());
  wait->num_left = requests.size();
  std::vector<OutputCallback> callbacks;
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].sampling_params.output_kind = RequestOutputKind::kFinalOnly;
    callbacks.push_back([wait, i](RequestOutput&& output) {
      const std::lock_guard lock(wait->mutex);
      wait->outputs[i] = std::move(output);
      if (--wait->num_left == 0) wait->all_done.notify_all();
    });
  }
  add_requests(std::move(requests), std::move(callbacks));
  std::unique_lock lock(wait->mutex);
  wait->all_done.wait(lock, [&] { return wait->num_left == 0; });
  return std::move(wait->outputs);
}

LLMEngine::LLMEngine(const EngineConfig& config) : EngineBase(config, /*threaded=*/false) {}
LLMEngine::~LLMEngine() = default;

std::string LLMEngine::add_request(EngineRequest request) {
  std::vector<Impl::Prepared> batch;
  batch.push_back(impl_->prepare(std::move(request), {}));
  std::string id = batch[0].request.request_id;
  impl_->submit(std::move(batch));
  return id;
}

bool LLMEngine::abort_request(const std::string& request_id) { return impl_->abort(request_id); }

bool LLMEngine::has_unfinished_requests() const {
  impl_->owner.check();
  const std::lock_guard lock(impl_->mutex);
  return impl_->output_processor->num_unfinished_requests() > 0 || !impl_->undelivered.empty();
}

std::vector<RequestOutput> LLMEngine::step() {
  impl_->owner.check();
  const std::lock_guard lock(impl_->step_mutex);
  std::vector<OutputProcessor::Delivery> deliveries;
  impl_->client->get_outputs(impl_->outputs);
  impl_->process(impl_->outputs);
  impl_->deliver(deliveries);
  std::vector<RequestOutput> result;
  for (auto& delivery : deliveries) result.push_back(std::move(delivery.output));
  return result;
}

}  // namespace quire
