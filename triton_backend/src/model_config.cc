#include "model_config.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "lora_files.h"
#include "quire/chat_parsers.h"
#include "quire/fields.h"
#include "quire/model_directory.h"
#include "server_api.h"
#include "tensors.h"

namespace quire::triton {
namespace {

using Json = nlohmann::ordered_json;

// Requests that are not finished, unless the configuration says otherwise: the server's own queue is always
// empty, because Execute returns at once.
constexpr int32_t kMaxQueuedRequests = 4096;

Json parse(const std::string& text, const char* what) {
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) throw InternalError(std::string("the server's ") + what + " is not a JSON object");
  return json;
}

// `absent`: what holds without a transaction policy.
bool is_decoupled(const Json& config, bool absent) {
  const auto policy = config.find("model_transaction_policy");
  return policy == config.end() || !policy->is_object() ? absent : policy->value("decoupled", false);
}

bool is_batched(const Json& config) { return config.value("max_batch_size", int64_t{0}) == 1; }

// A dimension that the author wrote: 64-bit numbers are strings in protobuf's JSON.
std::string dim_text(const Json& dim) { return dim.is_string() ? dim.get<std::string>() : dim.dump(); }

// What requests with this tensor could never satisfy.
void check_dims(const char* list, const std::string& name, const Json& tensor, const TensorSpec& spec) {
  const auto dims = tensor.find("dims");
  const bool one_element = std::string_view(list) == "input" && spec.dims == std::vector<int64_t>{1};
  if (!one_element || dims == tensor.end() || !dims->is_array()) return;
  for (const Json& dim : *dims) {
    if (dim_text(dim) == "1" || dim_text(dim) == "-1") continue;
    throw InvalidArgument(std::string(list) + " '" + excerpt(name) +
                          "' of the model configuration has a dimension of " + excerpt(dim_text(dim)) +
                          "; it holds one element, so write dims: [ 1 ]");
  }
}

// Adds the tensors that `list` lacks; those that it has must be ours.
void complete_tensors(Json& config, const char* list, const std::vector<TensorSpec>& specs, bool optional) {
  Json& tensors = config[list];
  if (!tensors.is_array()) tensors = Json::array();
  for (const Json& tensor : tensors) {
    const std::string name = tensor.value("name", "");
    const auto spec = std::find_if(specs.begin(), specs.end(), [&](const auto& s) { return name == s.name; });
    if (spec == specs.end()) {
      throw InvalidArgument(std::string(list) + " '" + excerpt(name) +
                            "' of the model configuration is not one that the quire "
                            "backend knows; leave all of them out and they are filled in");
    }
    const std::string type = tensor.value("data_type", "");
    if (type != spec->config_type) {
      throw InvalidArgument(std::string(list) + " '" + excerpt(name) +
                            "' of the model configuration has data_type " + type + "; it must be " +
                            spec->config_type);
    }
    check_dims(list, name, tensor, *spec);
    if (std::count_if(tensors.begin(), tensors.end(),
                      [&](const Json& t) { return t.value("name", "") == name; }) > 1) {
      throw InvalidArgument(std::string(list) + " '" + excerpt(name) +
                            "' is twice in the model configuration; leave one of them out");
    }
  }
  for (const TensorSpec& spec : specs) {
    const bool there = std::any_of(tensors.begin(), tensors.end(),
                                   [&](const Json& tensor) { return tensor.value("name", "") == spec.name; });
    if (there || (spec.if_batched && !is_batched(config))) continue;
    Json tensor = {{"name", spec.name}, {"data_type", spec.config_type}, {"dims", spec.dims}};
    if (optional) tensor["optional"] = true;
    tensors.push_back(std::move(tensor));
  }
}

// Server 2.51 may crash when a sample fails, so what must fail is refused.
void check_warmup(const Json& config) {
  const auto samples = config.find("model_warmup");
  if (samples == config.end() || !samples->is_array()) return;
  for (const Json& sample : *samples) {
    const std::string where = "model_warmup '" + excerpt(sample.value("name", "")) + "' ";
    if (sample.value("batch_size", int64_t{0}) != 1) {
      throw InvalidArgument(where + "has batch_size " +
                            std::to_string(sample.value("batch_size", int64_t{0})) +
                            "; it must be 1: the server passes over others without a word");
    }
    const Json inputs = sample.value("inputs", Json::object());
    if (!inputs.contains("text_input") && !inputs.contains("input_ids") && !inputs.contains("messages")) {
      throw InvalidArgument(where + "has neither text_input nor input_ids nor messages: give it a prompt");
    }
    for (const char* text : {"text_input", "messages"}) {
      if (!inputs.contains(text) || !inputs[text].value("zero_data", false)) continue;
      throw InvalidArgument(where + "has zero_data for " + text +
                            ", an empty prompt; give input_data_file, or zero_data for input_ids instead");
    }
    if (inputs.contains("input_ids") && inputs["input_ids"].value("random_data", false)) {
      throw InvalidArgument(where +
                            "has random_data for input_ids: ids that no vocabulary has; give zero_data or "
                            "input_data_file");
    }
  }
}

void refuse_what_we_cannot(const Json& config) {
  check_warmup(config);
  const int64_t max_batch_size = config.value("max_batch_size", int64_t{0});
  if (max_batch_size < 0 || max_batch_size > 1) {
    throw InvalidArgument("max_batch_size is " + std::to_string(max_batch_size) +
                          "; it must be 0, or 1 for clients whose shapes have a batch dimension: the engine "
                          "batches the requests itself");
  }
  const auto cache = config.find("response_cache");
  if (cache != config.end() && cache->is_object() && cache->value("enable", false)) {
    throw InvalidArgument(
        "response_cache is enabled; leave it out: the server's key for an answer covers the input tensors "
        "only, so that requests with other parameters (max_tokens, temperature) would get it too. Prompts "
        "that begin alike share their KV cache anyway");
  }
  if (config.contains("sequence_batching")) {
    throw InvalidArgument(
        "sequence_batching is not supported; prompts that begin alike share their KV cache anyway");
  }
}

int64_t read_count(const Json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end()) return 0;
  // 64-bit numbers are strings in protobuf's JSON.
  const std::string text = found->is_string() ? found->get<std::string>() : found->dump();
  int64_t count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  if (error != std::errc() || end != text.data() + text.size() || count < 0) {
    throw InvalidArgument(std::string(name) + " must be a whole number of at least 0, got " + excerpt(text));
  }
  return count;
}

void read_queue_policy(const Json& config, ModelSettings& settings) {
  const auto batching = config.find("dynamic_batching");
  if (batching == config.end() || !batching->is_object()) return;
  if (read_count(*batching, "priority_levels") > 0) {
    throw InvalidArgument(
        "dynamic_batching.priority_levels is set, but a backend is not told a request's priority; use the "
        "parameter scheduling_policy \"priority\" and the sampling parameter priority");
  }
  const auto policy = batching->find("default_queue_policy");
  if (policy == batching->end() || !policy->is_object()) return;
  if (const int64_t size = read_count(*policy, "max_queue_size"); size > 0) {
    settings.engine.max_waiting_requests = static_cast<int32_t>(std::min<int64_t>(size, INT32_MAX));
    settings.engine.max_queued_requests = 0;  // no limit: requests that wait have one, and max_num_seqs run
  }
  settings.allow_timeout_override = policy->value("allow_timeout_override", false);
  settings.queue_timeout_us = static_cast<uint64_t>(read_count(*policy, "default_timeout_microseconds"));
  if (policy->value("timeout_action", "REJECT") != "REJECT") {
    throw InvalidArgument(
        "dynamic_batching.default_queue_policy.timeout_action is " +
        excerpt(policy->value("timeout_action", "")) +
        "; it must be REJECT: the engine's order is its scheduling_policy, which a timeout does not change");
  }
}

// What the server tells every backend: options of its own, and --backend-config without a backend's name.
bool is_servers_own(const std::string& setting) {
  const char* const own[] = {"auto-complete-config", "backend-directory", "default-max-batch-size",
                             "min-compute-capability"};
  return std::any_of(std::begin(own), std::end(own), [&](const char* name) { return setting == name; });
}

// One tensor as config.pbtxt has it.
std::string as_pbtxt(const TensorSpec& spec, bool optional) {
  std::string dims;
  for (const int64_t dim : spec.dims) dims += (dims.empty() ? "" : ", ") + std::to_string(dim);
  return std::string("{ name: \"") + spec.name + "\" data_type: " + spec.config_type + " dims: [ " + dims +
         (optional ? " ] optional: true }" : " ] }");
}

std::string as_pbtxt(const char* list, const std::vector<TensorSpec>& specs, bool optional) {
  std::string text;
  for (const TensorSpec& spec : specs) {
    if (!spec.if_batched) text += (text.empty() ? "" : ", ") + as_pbtxt(spec, optional);
  }
  return std::string(list) + " [ " + text + " ]";
}

bool lists_one_of(const Json& config, const char* list, std::initializer_list<const char*> names) {
  const auto tensors = config.find(list);
  if (tensors == config.end() || !tensors->is_array()) return false;
  return std::any_of(tensors->begin(), tensors->end(), [&](const Json& tensor) {
    const std::string name = tensor.value("name", "");
    return std::any_of(names.begin(), names.end(), [&](const char* one) { return name == one; });
  });
}

std::string parameter_text(const std::string& name, const Json& parameter) {
  const auto value = parameter.is_object() ? parameter.find("string_value") : parameter.end();
  if (!parameter.is_object() || value == parameter.end() || !value->is_string()) {
    throw InvalidArgument("parameter '" + excerpt(name) + "' must have a string_value");
  }
  return value->get<std::string>();
}

// A path of a parameter, relative to the model's directory; a name of the hub, of which there is no such
// directory, stays as it is.
std::string beside(const std::filesystem::path& base, const std::string& given) {
  const std::filesystem::path path = base / given;  // an absolute path replaces the base
  std::error_code error;
  if (!std::filesystem::exists(path, error) && parse_hub_name(given)) return given;
  return path.lexically_normal().string();
}

// Also a link that leads nowhere.
bool is_present(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::exists(std::filesystem::symlink_status(path, error));
}

// What an instance group says of itself; the server resolves what it leaves open, and instances are looked at
// again.
void check_instance_groups(const Json& config, const ModelSettings& settings) {
  const auto groups = config.find("instance_group");
  if (groups == config.end() || !groups->is_array()) return;
  for (const Json& group : *groups) {
    if (group.value("passive", false)) {
      throw InvalidArgument(
          "instance_group has passive: true; leave it out: a passive instance gets no requests, and where "
          "all are passive the first request crashes the server");
    }
    const std::string kind = group.value("kind", "");
    if (kind == "KIND_CPU") settings.device_for(TRITONSERVER_INSTANCEGROUPKIND_CPU, 0);
    const auto gpus = group.find("gpus");
    if (kind != "KIND_GPU" || gpus == group.end() || !gpus->is_array()) continue;
    for (const Json& gpu : *gpus) {
      if (gpu.is_number_integer())
        settings.device_for(TRITONSERVER_INSTANCEGROUPKIND_GPU, gpu.get<int32_t>());
    }
  }
}

bool read_bool_parameter(const std::string& name, const std::string& text) {
  if (text == "true" || text == "false") return text == "true";
  throw InvalidArgument("parameter '" + name + "' must be \"true\" or \"false\", got \"" + excerpt(text) +
                        "\"");
}

// `lora_root` is the parameter's value, perhaps empty.
void read_loras(const std::filesystem::path& base, const std::string& lora_root, ModelSettings& settings) {
  std::error_code error;
  if (settings.lora_control && !settings.engine.enable_lora) {
    throw InvalidArgument(
        "parameter 'enable_lora_control' is \"true\", but the model has no adapters: set enable_lora too");
  }
  if (!lora_root.empty() && !settings.lora_control) {
    throw InvalidArgument(
        "parameter 'lora_root' is set, but requests load no adapters: set enable_lora_control, or leave it "
        "out");
  }
  settings.has_lora_root = !lora_root.empty();
  settings.lora_base = real_path((base / lora_root).string());
  if (settings.has_lora_root && !std::filesystem::is_directory(base / lora_root, error)) {
    throw InvalidArgument("parameter 'lora_root': there is no directory " +
                          (base / lora_root).lexically_normal().string());
  }
  if (!settings.multi_lora.empty()) {
    settings.multi_lora = (base / settings.multi_lora).lexically_normal().string();
  } else if (is_present(base / kMultiLoraFile)) {
    settings.multi_lora = (base / kMultiLoraFile).lexically_normal().string();
  } else {
    return;
  }
  if (!settings.engine.enable_lora) {
    throw InvalidArgument(
        settings.multi_lora +
        " lists adapters, but the model has none: set the parameter enable_lora to \"true\", "
        "or take the file away");
  }
  settings.loras = read_multi_lora(settings.multi_lora);
}

}  // namespace

std::string ModelSettings::device_for(TRITONSERVER_InstanceGroupKind kind, int32_t device_id) const {
  if (kind != TRITONSERVER_INSTANCEGROUPKIND_CPU && kind != TRITONSERVER_INSTANCEGROUPKIND_GPU)
    return engine.device;
  const bool gpu = kind == TRITONSERVER_INSTANCEGROUPKIND_GPU;
  const std::string device = gpu ? "cuda:" + std::to_string(device_id) : "cpu";
  const bool agrees =
      !names_device || engine.device == "auto" || engine.device == device || (gpu && engine.device == "cuda");
  if (agrees) return device;
  throw InvalidArgument("parameter 'device' is \"" + excerpt(engine.device) +
                        "\", but instance_group has an instance of " +
                        (gpu ? "KIND_GPU on GPU " + std::to_string(device_id) : "KIND_CPU") +
                        "; leave the parameter out, or write kind: KIND_MODEL in instance_group");
}

std::string complete_config(const std::string& config_json) {
  Json config = parse(config_json, "model configuration");
  refuse_what_we_cannot(config);
  complete_tensors(config, "input", input_specs(), /*optional=*/true);
  complete_tensors(config, "output", output_specs(), /*optional=*/false);
  config["model_transaction_policy"] = {{"decoupled", is_decoupled(config, /*absent=*/true)}};
  return config.dump();
}

void require_complete_config(const std::string& config_json) {
  const Json config = parse(config_json, "model configuration");
  const bool has_prompt = lists_one_of(config, "input", {"text_input", "input_ids", "messages"});
  const bool has_answer = lists_one_of(config, "output", {"text_output", "output_ids", "message"});
  if (has_prompt && has_answer) return;
  // Not InvalidArgument, which shortens what it says: all of this is to be copied.
  throw ServerError(
      TRITONSERVER_ERROR_INVALID_ARG,
      std::string("the model configuration lists no ") +
          (has_prompt ? "output 'text_output', 'output_ids' or 'message'"
                      : "input 'text_input', 'input_ids' or 'messages'") +
          ", and --disable-auto-complete-config keeps the backend from adding them: start the server without "
          "it, or write into config.pbtxt what the model is to have of " +
          as_pbtxt("input", input_specs(), /*optional=*/true) + " " +
          as_pbtxt("output", output_specs(), /*optional=*/false) +
          " and model_transaction_policy { decoupled: true }");
}

ModelSettings read_settings(const std::string& config_json, const std::string& version_directory) {
  const Json config = parse(config_json, "model configuration");
  refuse_what_we_cannot(config);
  ModelSettings settings;
  settings.decoupled = is_decoupled(config, /*absent=*/false);  // a configuration that was completed has it
  settings.batched = is_batched(config);
  settings.num_outputs = config.contains("output") ? config["output"].size() : 0;
  settings.engine.max_queued_requests = kMaxQueuedRequests;
  read_queue_policy(config, settings);
  std::string lora_root;
  if (const auto parameters = config.find("parameters");
      parameters != config.end() && parameters->is_object()) {
    for (const auto& [name, parameter] : parameters->items()) {
      const std::string text = parameter_text(name, parameter);
      if (name == "kv_arena") {
        if (text != "shared" && text != "own") {
          throw InvalidArgument("parameter 'kv_arena' must be \"shared\" or \"own\", got \"" + excerpt(text) +
                                "\"");
        }
        settings.shares_kv_arena = text == "shared";
        continue;
      }
      if (name == "ignored_parameters") {
        std::istringstream names(text);
        for (std::string one; std::getline(names, one, ',');) settings.ignored_parameters.push_back(one);
        continue;
      }
      if (name == "reasoning_parser" || name == "tool_parser") {
        (name == "tool_parser" ? settings.tool_parser : settings.reasoning_parser) = text;
        continue;
      }
      if (name == "enable_lora_control") {
        settings.lora_control = read_bool_parameter(name, text);
        continue;
      }
      if (name == "multi_lora" || name == "lora_root") {
        (name == "lora_root" ? lora_root : settings.multi_lora) = text;
        continue;
      }
      if (name == "device") settings.names_device = true;
      try {
        set_field(settings.engine, name, text);
      } catch (const InvalidArgument& error) {
        throw InvalidArgument("parameter '" + excerpt(name) + "': " + error.what());
      }
    }
  }
  check_instance_groups(config, settings);
  ChatFormat::make(settings.reasoning_parser, settings.tool_parser);  // throws for names that are not known
  const std::filesystem::path base = version_directory;
  read_loras(base, lora_root, settings);
  if (settings.engine.model.empty()) {
    if (!std::filesystem::exists(base / "config.json")) {
      throw InvalidArgument("parameter 'model' is missing, and " + version_directory +
                            " holds no config.json: name a Hugging Face directory, or put its files there");
    }
    settings.engine.model = base.lexically_normal().string();
  }
  settings.engine.model = beside(base, settings.engine.model);
  if (!settings.engine.tokenizer.empty()) settings.engine.tokenizer = beside(base, settings.engine.tokenizer);
  for (std::string& plugin : settings.engine.plugins)
    if (plugin.find('/') != std::string::npos) plugin = (base / plugin).lexically_normal().string();
  try {
    settings.engine = locate_model(std::move(settings.engine));
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(std::string("parameter ") + error.what());
  }
  return settings;
}

BackendSettings read_backend_settings(const std::string& backend_config_json) {
  BackendSettings settings;
  const Json config = parse(backend_config_json, "backend configuration");
  const auto cmdline = config.find("cmdline");
  if (cmdline == config.end() || !cmdline->is_object()) return settings;
  struct Setting {
    const char* name;
    int64_t min;
    int64_t& value;
  };
  const Setting known[] = {{"kv-arena-bytes", 0, settings.kv_arena_bytes},
                           {"exit-grace-secs", 0, settings.exit_grace_secs},
                           {"response-burst", 1, settings.response_burst}};
  for (const auto& [name, given] : cmdline->items()) {
    const auto setting =
        std::find_if(std::begin(known), std::end(known), [&](const Setting& s) { return name == s.name; });
    if (setting == std::end(known)) {
      if (is_servers_own(name)) continue;
      std::string names;
      for (const Setting& s : known) names += (names.empty() ? "" : ", ") + std::string(s.name);
      throw InvalidArgument("--backend-config=quire," + excerpt(name) +
                            " is not a setting we know; there are " + names);
    }
    const std::string text = given.is_string() ? given.get<std::string>() : given.dump();
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), setting->value);
    if (error != std::errc() || end != text.data() + text.size() || setting->value < setting->min) {
      throw InvalidArgument("--backend-config=quire," + name + " must be a whole number of at least " +
                            std::to_string(setting->min) + ", got \"" + excerpt(text) + "\"");
    }
  }
  settings.exit_grace_secs =
      std::min<int64_t>(settings.exit_grace_secs, 365 * 24 * 3600);  // what a clock can add
  return settings;
}

}  // namespace quire::triton
