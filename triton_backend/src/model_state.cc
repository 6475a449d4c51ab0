#include "model_state.h"

#include <pthread.h>

#include <chrono>
#include <optional>

#include "lora_files.h"
#include "process_exit.h"
#include "request_reader.h"

namespace quire::triton {
namespace {

using Ending = InFlightRequest::Ending;

std::string version_directory(TRITONBACKEND_Model* model, uint64_t version) {
  TRITONBACKEND_ArtifactType type = TRITONBACKEND_ARTIFACT_FILESYSTEM;
  const char* location = nullptr;
  check(server_api().TRITONBACKEND_ModelRepository(model, &type, &location));
  if (type != TRITONBACKEND_ARTIFACT_FILESYSTEM) {
    throw ServerError(TRITONSERVER_ERROR_UNSUPPORTED,
                      "the quire backend loads models from a file system only");
  }
  return std::string(location) + "/" + std::to_string(version);
}

std::string model_config(TRITONBACKEND_Model* model) {
  TRITONSERVER_Message* message = nullptr;
  check(server_api().TRITONBACKEND_ModelConfig(model, /*config_version=*/1, &message));
  return json_text(message, /*owned=*/true);
}

void set_model_config(TRITONBACKEND_Model* model, const std::string& json) {
  const ServerApi& api = server_api();
  TRITONSERVER_Message* message = nullptr;
  check(api.TRITONSERVER_MessageNewFromSerializedJson(&message, json.data(), json.size()));
  TRITONSERVER_Error* error = api.TRITONBACKEND_ModelSetConfig(model, /*config_version=*/1, message);
  log_failure(api.TRITONSERVER_MessageDelete(message), "deleting a message");
  check(error);
}

BackendState* backend_state(TRITONBACKEND_Model* model) {
  TRITONBACKEND_Backend* backend = nullptr;
  void* state = nullptr;
  check(server_api().TRITONBACKEND_ModelBackend(model, &backend));
  check(server_api().TRITONBACKEND_BackendState(backend, &state));
  return static_cast<BackendState*>(state);
}

// How often requests whose outputs do not pass by are looked at: steps of real models take longer.
constexpr std::chrono::milliseconds kWatchInterval{1};
// Streams are looked at whenever they have an output; in between, and while they wait, this is enough.
constexpr std::chrono::milliseconds kStreamWatchInterval{50};

constexpr std::chrono::microseconds kWatchIntervalPerRequest{4};
constexpr std::chrono::milliseconds kServerWatchInterval{100};
// From the end of a stream whose client has gone to its last response. Server 2.51 frees the stream's state
// twice when that finds an earlier response still being written, and crashes.
constexpr std::chrono::milliseconds kLinger{50};
// Of adapters' names in a complaint, about.
constexpr size_t kMaxListedBytes = 500;

}  // namespace

ModelState::ModelState(TRITONBACKEND_Model* model) : backend_(backend_state(model)) {
  const ServerApi& api = server_api();
  const char* name = nullptr;
  check(api.TRITONBACKEND_ModelName(model, &name));
  check(api.TRITONBACKEND_ModelVersion(model, &version_));
  check(api.TRITONBACKEND_ModelServer(model, &server_));
  name_ = name;

  std::string config = model_config(model);
  const std::string completed = complete_config(config);
  bool may_complete = false;
  check(api.TRITONBACKEND_ModelAutoCompleteConfig(model, &may_complete));
  if (may_complete) {
    set_model_config(model, completed);
    config = completed;
  } else {
    require_complete_config(config);
  }
  settings_ = read_settings(config, version_directory(model, version_));
  if (settings_.shares_kv_arena) settings_.engine.kv_arena = backend_->kv_arena();
  settings_.engine.on_dead = [this](const std::string&) {
    backend_->unload_later(server_, name_, is_current_);
  };
  watcher_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "quire-watch");
    watch();
  });
  enlist_for_exit(this, [this] { return end_requests(); });
}

ModelState::~ModelState() {
  withdraw_from_exit(this);
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  watcher_.join();
  backend_->withdraw(name_, version_, is_current_);
}

Engine* ModelState::engine_for(TRITONBACKEND_ModelInstance* instance) {
  TRITONSERVER_InstanceGroupKind kind = TRITONSERVER_INSTANCEGROUPKIND_MODEL;
  int32_t device_id = 0;
  check(server_api().TRITONBACKEND_ModelInstanceKind(instance, &kind));
  check(server_api().TRITONBACKEND_ModelInstanceDeviceId(instance, &device_id));
  const std::string device = settings_.device_for(kind, device_id);
  const std::lock_guard lock(load_mutex_);
  const auto found = engines_.find(device);
  if (found != engines_.end()) return found->second.get();
  return engines_.emplace(device, load(device)).first->second.get();
}

std::unique_ptr<Engine> ModelState::load(const std::string& device) {
  EngineConfig config = settings_.engine;
  config.device = device;
  std::shared_ptr<MetricReporter> reporter;
  if (auto families = backend_->metric_families()) {
    reporter =
        std::make_shared<MetricReporter>(std::move(families), name_, version_, engines_.size(), is_current_);
    config.metric_sink = reporter;
  }
  auto engine = std::make_unique<Engine>(config);
  if (engines_.empty()) {
    chat_format_ = ChatFormat::make(settings_.reasoning_parser, settings_.tool_parser, engine->tokenizer());
  }
  loras_.enroll(*engine);
  if (engines_.empty()) backend_->enroll(name_, version_, is_current_);
  if (reporter) reporter->reset_gauges(engine->stats().num_total_blocks);
  const ModelDescription& description = engine->model();
  log(TRITONSERVER_LOG_INFO, "model '" + name_ + "': " + description.architecture + " in " +
                                 description.dtype + " on " + description.backend + ", max_model_len " +
                                 std::to_string(description.max_model_len));
  return engine;
}

void ModelState::execute(const InstanceState& instance, TRITONBACKEND_Request* request) {
  const auto in_flight =
      std::make_shared<InFlightRequest>(instance.instance, request, backend_->response_pacer());
  in_flight->engine = instance.engine;
  try {
    start(in_flight, request);
  } catch (...) {
    remove(in_flight);
    in_flight->end_with_error(current_exception_as_error());
  }
}

void ModelState::start(const InFlight& in_flight, TRITONBACKEND_Request* request) {
  if (process_is_exiting()) throw ServerError(TRITONSERVER_ERROR_UNAVAILABLE, kServerExits);
  const ReadRequest read = read_request(request);
  AdaptedRequest adapted = adapt_request(read.incoming, settings_);
  if (adapted.cancel) {
    cancel_by_id(adapted.request_id);
    in_flight->begin(adapted, {}, nullptr);
    in_flight->end_with(reply({}, FinishReason::kAbort, settings_.batched));
    return;
  }
  if (adapted.lora_control.action != LoraControl::Action::kNone) {
    loras_.submit(in_flight, std::move(adapted.lora_control));
    return;
  }
  Engine& engine = *in_flight->engine;
  check_lora(adapted.request.lora_name, engine);
  ChatAnswerOptions chat;
  if (adapted.is_chat()) chat = prepare(adapted, engine);
  in_flight->begin(adapted, prompt_text(adapted, engine), engine.tokenizer(), std::move(chat));
  add(in_flight, adapted.unique_id);
  adapted.request.request_id = in_flight->engine_id;
  try {
    engine.add_request(std::move(adapted.request),
                       [this, in_flight](RequestOutput&& output) { deliver(in_flight, std::move(output)); });
  } catch (const ResourceExhausted& error) {
    // The engine knows of a deadline only; a client that has given a timeout is to hear of that.
    if (adapted.timeout_us == 0 || !std::string_view(error.what()).starts_with("deadline_ms")) throw;
    throw ResourceExhausted("the request's timeout is " + std::to_string(adapted.timeout_us) +
                            " us: " + error.what());
  }
  in_flight->submitted();
  // Whoever ended it before the engine knew it has aborted nothing.
  if (in_flight->ending != Ending::kNone) engine.abort_request(in_flight->engine_id);
}

void ModelState::check_lora(const std::string& name, const Engine& engine) const {
  if (name.empty() || engine.has_lora(name)) return;
  const std::string complaint = "lora_name is '" + excerpt(name) + "', but this model ";
  if (!settings_.engine.enable_lora) {
    throw InvalidArgument(complaint +
                          "serves no adapters: leave it out, or set the model's parameter enable_lora");
  }
  std::string names;
  const std::vector<LoraInfo> loras = engine.list_loras();
  for (const LoraInfo& lora : loras) {
    if (names.size() > kMaxListedBytes) {
      names += ", ...";
      break;
    }
    names += (names.empty() ? "" : ", ") + excerpt(lora.lora_name);
  }
  const std::string advice = std::string("; ") + kMultiLoraFile + " beside the model lists adapters" +
                             (settings_.lora_control ? ", and load_lora adds others" : "");
  throw InvalidArgument(complaint + (names.empty() ? "has none yet" : "has " + names) + advice);
}

ChatAnswerOptions ModelState::prepare(AdaptedRequest& adapted, const Engine& engine) {
  ChatAnswerOptions chat = prepare_chat(engine, chat_format_, adapted.chat, adapted.request);
  if (!adapted.response.message) return chat;
  if (!engine.tokenizer())
    throw InvalidArgument("message is asked for, but skip_tokenizer_init is set: there is no text to read");
  if (!chat_format_->skip_special_tokens()) adapted.request.sampling_params.skip_special_tokens = false;
  return chat;
}

std::string ModelState::prompt_text(const AdaptedRequest& adapted, const Engine& engine) {
  if (!adapted.response.prepend_input) return {};
  const EngineRequest& request = adapted.request;
  if (request.prompt_token_ids.empty()) return request.prompt;
  if (!engine.tokenizer()) {
    throw InvalidArgument(
        "exclude_input_in_output is false, but skip_tokenizer_init is set: there is no text");
  }
  return engine.tokenizer()->decode(request.prompt_token_ids, request.sampling_params.skip_special_tokens);
}

void ModelState::deliver(const InFlight& in_flight, RequestOutput&& output) {
  // A client that has gone is noticed before another response is made for it.
  const auto guard = enter_server();
  if (!output.finished && in_flight->ending == Ending::kNone && in_flight->is_cancelled()) {
    in_flight->ending = Ending::kCancelled;
    in_flight->engine->abort_request(in_flight->engine_id);
  }
  if (output.finished) remove(in_flight);  // its name is free before its client can know that it has ended
  if (output.finished && in_flight->streams() && in_flight->is_cancelled()) {
    linger(in_flight);
  } else if (in_flight->deliver(output) && !output.finished) {
    remove(in_flight);
    in_flight->engine->abort_request(in_flight->engine_id);
  }
}

void ModelState::linger(const InFlight& in_flight) {
  const std::lock_guard lock(mutex_);
  lingering_.push_back({in_flight, std::chrono::steady_clock::now() + kLinger});
  wake_.notify_all();
}

void ModelState::cancel_by_id(const std::string& request_id) {
  std::vector<InFlight> found;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [engine_id, other] : in_flight_) {
      if (other->request_id != request_id) continue;
      other->ending = Ending::kCancelled;
      found.push_back(other);
    }
  }
  if (found.empty()) {
    throw ServerError(TRITONSERVER_ERROR_NOT_FOUND,
                      "no unfinished request is called '" + excerpt(request_id) + "'");
  }
  for (const InFlight& other : found) other->engine->abort_request(other->engine_id);
}

void ModelState::add(const InFlight& in_flight, bool unique_id) {
  const std::lock_guard lock(mutex_);
  for (const auto& [engine_id, other] : in_flight_) {
    if (unique_id && other->request_id == in_flight->request_id) {
      throw InvalidArgument("request_id '" + excerpt(in_flight->request_id) +
                            "' is in use; wait until it is finished, or choose another");
    }
  }
  in_flight->engine_id = name_ + "-" + std::to_string(++num_requests_);
  in_flight_[in_flight->engine_id] = in_flight;
  if (!in_flight->streams()) ++num_without_stream_;
  if (in_flight_.size() == 1 || num_without_stream_ == 1) wake_.notify_all();
}

void ModelState::remove(const InFlight& in_flight) {
  const std::lock_guard lock(mutex_);
  if (in_flight_.erase(in_flight->engine_id) > 0 && !in_flight->streams()) --num_without_stream_;
}

void ModelState::watch() {
  using Clock = std::chrono::steady_clock;
  Clock::time_point look_at_server = Clock::now();
  std::optional<Clock::time_point> end_of_grace;
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stopping_ || !in_flight_.empty() || !lingering_.empty(); });
    const bool watch_closely = num_without_stream_ > 0;
    // Looking at thousands takes longer than a moment: no more than some hundredths of the time goes there.
    const auto interval = std::max<Clock::duration>(watch_closely ? kWatchInterval : kStreamWatchInterval,
                                                    in_flight_.size() * kWatchIntervalPerRequest);
    wake_.wait_for(lock, interval, [&] { return stopping_ || (num_without_stream_ > 0 && !watch_closely); });
    if (stopping_) return;
    lock.unlock();
    try {
      const auto guard = enter_server();
      const Clock::time_point now = Clock::now();
      if (!end_of_grace && now >= look_at_server) {
        look_at_server = now + kServerWatchInterval;
        // The signal is the earlier word: the server waits for HTTP connections before it says so itself.
        if (const auto told = told_to_end()) {
          end_of_grace = *told + backend_->exit_grace();
        } else if (server_exits()) {
          end_of_grace = now + backend_->exit_grace();
        }
      }
      for (const InFlight& unwanted : unwanted_requests(end_of_grace && now >= *end_of_grace)) {
        unwanted->engine->abort_request(unwanted->engine_id);
      }
      end_lingering(now);
    } catch (const std::exception& error) {  // out of memory, say: the next look may go better
      log(TRITONSERVER_LOG_WARN, std::string("looking for cancelled requests: ") + error.what());
    }
    lock.lock();
  }
}

void ModelState::end_lingering(std::chrono::steady_clock::time_point now) {
  while (true) {
    InFlight in_flight;
    {
      const std::lock_guard lock(mutex_);
      if (lingering_.empty() || lingering_.front().until > now) return;
      in_flight = std::move(lingering_.front().in_flight);
      lingering_.pop_front();
    }
    in_flight->end_cancelled();
  }
}

// A server that has been told to end waits for its models, and they for their requests.
bool ModelState::server_exits() const {
  bool live = true;
  TRITONSERVER_Error* error = server_api().TRITONSERVER_ServerIsLive(server_, &live);
  if (!error) return false;
  server_api().TRITONSERVER_ErrorDelete(error);
  return true;
}

size_t ModelState::end_requests() {
  for (const InFlight& unwanted : unwanted_requests(/*time_is_up=*/true)) {
    unwanted->engine->abort_request(unwanted->engine_id);
  }
  end_lingering(std::chrono::steady_clock::time_point::max());
  const std::lock_guard lock(mutex_);
  return in_flight_.size() + loras_.num_unfinished();
}

std::vector<ModelState::InFlight> ModelState::unwanted_requests(bool time_is_up) {
  std::vector<InFlight> unwanted;
  const std::lock_guard lock(mutex_);
  for (const auto& [engine_id, in_flight] : in_flight_) {
    if (in_flight->ending != Ending::kNone) continue;
    const bool cancelled = in_flight->is_cancelled();
    if (!cancelled && !time_is_up) continue;
    in_flight->ending = cancelled ? Ending::kCancelled : Ending::kServerExits;
    unwanted.push_back(in_flight);
  }
  return unwanted;
}

}  // namespace quire::triton
