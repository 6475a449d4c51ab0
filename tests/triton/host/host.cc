#include "host.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

namespace quire::triton::host {
namespace {

using namespace std::chrono_literals;

constexpr auto kPatience = 60s;

void throw_if(TRITONSERVER_Error* error) {
  if (!error) return;
  const HostError thrown(error->code, error->message);
  TRITONSERVER_ErrorDelete(error);
  throw thrown;
}

bool ended(const ClientEnd& client) { return client.final && client.released; }

TRITONSERVER_DataType config_datatype(const std::string& config_type) {
  if (config_type == "TYPE_STRING") return TRITONSERVER_TYPE_BYTES;
#define QUIRE_TRITON_IF_NAME(enumerator, value) \
  if ("TRITONSERVER_" + config_type == #enumerator) return enumerator;
  QUIRE_TRITON_DATA_TYPES(QUIRE_TRITON_IF_NAME)
#undef QUIRE_TRITON_IF_NAME
  return TRITONSERVER_TYPE_INVALID;
}

// What the server holds responses against.
void read_config(TRITONBACKEND_Model& model) {
  const auto config = nlohmann::json::parse(model.config);
  model.batched = config.value("max_batch_size", 0) > 0;
  model.decoupled = config.value("/model_transaction_policy/decoupled"_json_pointer, false);
  for (const auto& output : config["output"]) {
    model.outputs[output["name"]] = {config_datatype(output["data_type"]),
                                     output["dims"].get<std::vector<int64_t>>()};
  }
}

}  // namespace

std::string string_bytes(const std::string& text) {
  const auto size = static_cast<uint32_t>(text.size());
  return std::string(reinterpret_cast<const char*>(&size), sizeof size) + text;
}

Input string_input(const std::string& name, const std::string& text) {
  return {name, TRITONSERVER_TYPE_BYTES, {1}, {string_bytes(text)}};
}

Input bool_input(const std::string& name, bool value) {
  return {name, TRITONSERVER_TYPE_BOOL, {1}, {std::string(1, value ? '\1' : '\0')}};
}

Input ids_input(const std::vector<int32_t>& ids) {
  return {"input_ids",
          TRITONSERVER_TYPE_INT32,
          {static_cast<int64_t>(ids.size())},
          {std::string(reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(int32_t))}};
}

ClientRequest text_request(const std::string& text, const std::string& sampling_parameters) {
  ClientRequest request;
  request.inputs.push_back(string_input("text_input", text));
  if (!sampling_parameters.empty())
    request.inputs.push_back(string_input("sampling_parameters", sampling_parameters));
  return request;
}

ClientRequest stream_request(const std::string& text, const std::string& sampling_parameters) {
  ClientRequest request = text_request(text, sampling_parameters);
  request.inputs.push_back(bool_input("stream", true));
  return request;
}

std::vector<std::string> strings(const ReceivedOutput& output) {
  std::vector<std::string> texts;
  for (size_t at = 0; at < output.bytes.size();) {
    uint32_t size = 0;
    std::memcpy(&size, output.bytes.data() + at, sizeof size);
    texts.push_back(output.bytes.substr(at + sizeof size, size));
    at += sizeof size + size;
  }
  return texts;
}

// ---- Call ----

std::vector<ReceivedResponse> Call::wait() const {
  if (!wait_until_done(kPatience)) throw std::runtime_error("a request has not ended");
  return responses();
}

bool Call::wait_until_done(std::chrono::milliseconds timeout) const {
  std::unique_lock lock(client_->mutex);
  return client_->changed.wait_for(lock, timeout, [this] { return ended(*client_); });
}

void Call::wait_for_responses(size_t count) const {
  std::unique_lock lock(client_->mutex);
  if (!client_->changed.wait_for(lock, kPatience,
                                 [&] { return client_->responses.size() >= count || ended(*client_); })) {
    throw std::runtime_error("no response has come");
  }
}

std::vector<ReceivedResponse> Call::responses() const {
  const std::lock_guard lock(client_->mutex);
  return client_->responses;
}

std::string Call::error() const {
  const std::lock_guard lock(client_->mutex);
  return client_->responses.empty() ? "no response" : client_->responses.back().error;
}

std::optional<TRITONSERVER_Error_Code> Call::error_code() const {
  const std::lock_guard lock(client_->mutex);
  return client_->responses.empty() ? std::nullopt : client_->responses.back().error_code;
}

std::string Call::text() const {
  std::string text;
  for (const ReceivedResponse& response : responses()) {
    const auto output = response.outputs.find("text_output");
    if (output != response.outputs.end()) text += strings(output->second).at(0);
  }
  return text;
}

std::vector<int32_t> Call::ids() const {
  std::vector<int32_t> ids;
  for (const ReceivedResponse& response : responses()) {
    const auto output = response.outputs.find("output_ids");
    if (output == response.outputs.end()) continue;
    for (int32_t id : numbers<int32_t>(output->second)) ids.push_back(id);
  }
  return ids;
}

bool Call::counted_success() const {
  const std::lock_guard lock(client_->mutex);
  return client_->counted_success;
}

// ---- Model ----

Model::Model(TRITONSERVER_Server* server, TRITONBACKEND_Backend* backend, const std::string& name,
             const std::string& config, const LoadOptions& options)
    : model_(ledger().make<TRITONBACKEND_Model>()) {
  model_->name = name;
  model_->version = options.version;
  model_->repository = options.repository;
  model_->config = config;
  model_->auto_complete = options.auto_complete;
  model_->backend = backend;
  model_->server = server;
  model_->initializing = true;
  TRITONSERVER_Error* error = TRITONBACKEND_ModelInitialize(model_);
  model_->initializing = false;
  if (error) end();
  throw_if(error);
  read_config(*model_);
  for (const Instance& instance : options.instances) {
    instances_.push_back(ledger().make<TRITONBACKEND_ModelInstance>());
    instances_.back()->model = model_;
    instances_.back()->instance_kind = instance.kind;
    instances_.back()->device_id = instance.device_id;
    error = TRITONBACKEND_ModelInstanceInitialize(instances_.back());
    if (!error) continue;
    ledger().end(instances_.back(), "a failed ModelInstanceInitialize");
    instances_.pop_back();
    finalize();
    throw_if(error);
  }
}

Model::~Model() { unload(); }

std::shared_ptr<Call> Model::infer(const ClientRequest& request, size_t instance) {
  return infer_batch({request}, instance).front();
}

std::vector<std::shared_ptr<Call>> Model::infer_batch(const std::vector<ClientRequest>& requests,
                                                      size_t instance) {
  std::vector<TRITONBACKEND_Request*> batch;
  std::vector<std::shared_ptr<Call>> calls;
  std::vector<std::shared_ptr<ClientEnd>> clients;
  for (const ClientRequest& request : requests) {
    auto client = std::make_shared<ClientEnd>();
    client->cancelled = request.cancelled;
    client->refused_from = request.refused_from;
    client->on_response = request.on_response;
    auto* made = ledger().make<TRITONBACKEND_Request>();
    made->id = request.id;
    made->inputs.assign(request.inputs.begin(), request.inputs.end());
    made->parameters = request.parameters;
    made->outputs = request.outputs;
    if (made->outputs.empty()) {
      for (const auto& [name, spec] : model_->outputs) made->outputs.push_back(name);
    }
    made->timeout_us = request.timeout_us;
    made->model = model_;
    made->instance = instances_.at(instance);
    made->client = client;
    batch.push_back(made);
    calls.push_back(std::make_shared<Call>(client));
    clients.push_back(std::move(client));
  }
  const auto take_back = [&] {
    for (TRITONBACKEND_Request* request : batch) ledger().end(request, "a request that was not executed");
  };
  {
    const std::lock_guard lock(mutex_);
    if (unloading_) {
      take_back();
      throw HostError(TRITONSERVER_ERROR_UNAVAILABLE, "the model is not ready");
    }
    std::erase_if(in_flight_, [](const auto& client) {
      const std::lock_guard client_lock(client->mutex);
      return ended(*client);
    });
    in_flight_.insert(in_flight_.end(), clients.begin(), clients.end());
  }
  TRITONSERVER_Error* error = nullptr;
  {
    const std::lock_guard lock(instances_.at(instance)->execute_mutex);
    error = TRITONBACKEND_ModelInstanceExecute(instances_[instance], batch.data(),
                                               static_cast<uint32_t>(batch.size()));
  }
  if (error) {
    take_back();
    for (const auto& client : clients) {
      const std::lock_guard lock(client->mutex);
      client->final = client->released = true;
    }
  }
  throw_if(error);
  return calls;
}

std::string Model::not_ready(size_t instance) {
  try {
    throw_if(TRITONBACKEND_ModelInstanceReady(instances_.at(instance)));
    return "";
  } catch (const HostError& error) {
    return error.what();
  }
}

void Model::unload() {
  std::vector<std::shared_ptr<ClientEnd>> in_flight;
  {
    const std::lock_guard lock(mutex_);
    unloading_ = true;
    in_flight = in_flight_;
  }
  for (const auto& client : in_flight) {
    std::unique_lock lock(client->mutex);
    if (!client->changed.wait_for(lock, kPatience, [&] { return ended(*client); })) {
      ledger().violation("a request has not ended when its model is unloaded");
    }
  }
  finalize();
}

void Model::remove_last_instance() {
  TRITONBACKEND_ModelInstance* instance = instances_.back();
  instances_.pop_back();
  const std::lock_guard lock(instance->execute_mutex);  // its thread has left Execute
  throw_if(TRITONBACKEND_ModelInstanceFinalize(instance));
  ledger().end(instance, "Model");
}

void Model::finalize() {
  std::call_once(finalized_, [this] {
    {
      const std::lock_guard lock(mutex_);
      unloading_ = true;
    }
    for (TRITONBACKEND_ModelInstance* instance : instances_) {
      const std::lock_guard lock(instance->execute_mutex);  // its thread has left Execute
      throw_if(TRITONBACKEND_ModelInstanceFinalize(instance));
      ledger().end(instance, "Model");
    }
    throw_if(TRITONBACKEND_ModelFinalize(model_));
    end();
  });
}

void Model::end() { ledger().end(model_, "Model"); }

uint64_t Model::num_successes() const {
  uint64_t sum = 0;
  for (const TRITONBACKEND_ModelInstance* instance : instances_) sum += instance->num_successes;
  return sum;
}

uint64_t Model::num_failures() const {
  uint64_t sum = 0;
  for (const TRITONBACKEND_ModelInstance* instance : instances_) sum += instance->num_failures;
  return sum;
}

// ---- Host ----

Host::Host(const std::string& backend_config)
    : server_(ledger().make<TRITONSERVER_Server>()), backend_(ledger().make<TRITONBACKEND_Backend>()) {
  server_->unload = [this](const std::string& model) { unload(model); };
  backend_->config = ledger().make<TRITONSERVER_Message>(backend_config, /*servers_own=*/true);
  throw_if(TRITONBACKEND_Initialize(backend_));
}

Host::~Host() {
  std::map<std::string, std::shared_ptr<Model>> models;
  {
    const std::lock_guard lock(mutex_);
    models.swap(models_);
  }
  for (const auto& [name, model] : models) model->unload();
  if (TRITONSERVER_Error* error = TRITONBACKEND_Finalize(backend_)) {
    ledger().violation("Finalize: " + error->message);
    TRITONSERVER_ErrorDelete(error);
  }
  ledger().end(backend_, "Host");
  ledger().end(server_, "Host");
}

std::shared_ptr<Model> Host::load(const std::string& name, const std::string& config,
                                  const LoadOptions& options) {
  auto model = std::make_shared<Model>(server_, backend_, name, config, options);
  const std::lock_guard lock(mutex_);
  models_[name] = model;
  return model;
}

double Host::metric(const std::string& name, const std::map<std::string, std::string>& labels) const {
  return ledger().sum_of_metrics(name, labels);
}

std::vector<Host::Unload> Host::unloads() const {
  const std::lock_guard lock(mutex_);
  return unloads_;
}

bool Host::wait_for_unload(size_t count) const {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, kPatience / 2, [&] { return num_unloaded_ >= count; });
}

void Host::unload(const std::string& name) {
  std::shared_ptr<Model> model;
  {
    const std::lock_guard lock(mutex_);
    unloads_.push_back({name, std::this_thread::get_id()});
    const auto found = models_.find(name);
    if (found != models_.end()) {
      model = found->second;
      models_.erase(found);
    }
  }
  if (model) model->unload();
  const std::lock_guard lock(mutex_);
  ++num_unloaded_;
  changed_.notify_all();
}

}  // namespace quire::triton::host
