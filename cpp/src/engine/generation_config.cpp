#include "engine/generation_config.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <string_view>
#include <utility>

#include "formats/gguf_config.h"
#include "formats/hf_config.h"
#include "formats/json.h"
#include "quire/error.h"
#include "quire/fields.h"
#include "util/str.h"

namespace quire {
namespace {

struct Key {
  const char* name;   // in generation_config.json
  const char* field;  // of SamplingParams
};
constexpr Key kKeys[] = {
    {"temperature", "temperature"},
    {"top_p", "top_p"},
    {"top_k", "top_k"},
    {"min_p", "min_p"},
    {"repetition_penalty", "repetition_penalty"},
    {"max_new_tokens", "max_tokens"},
};
constexpr const char* kFile = "/generation_config.json";

bool names_a_file(const EngineConfig& config) {
  const std::string& name = config.generation_config;
  return name != "auto" && name != "vllm" && name != "none";
}

// Of the file that is named. Throws InvalidArgument when it is not there.
std::string named_path(const EngineConfig& config) {
  const std::string& name = config.generation_config;
  std::error_code error;
  if (!name.empty()) {
    const std::string path = std::filesystem::is_directory(name, error) ? name + kFile : name;
    if (std::filesystem::is_regular_file(path, error)) return path;
  }
  throw InvalidArgument(
      str("generation_config: no file '", name.substr(0, 200), "', or '", kFile + 1,
          "' in a directory of that name; give a path, 'auto' for the model's own, or 'vllm'"));
}

Json read_object(const std::string& text, const std::string& where) {
  Json object = parse_json(text, where);
  if (!object.is_object()) throw InvalidArgument(str(where, " must be a JSON object"));
  return object;
}

void apply(const Json& object, const std::string& where, EngineRequest& request) {
  for (const Key& key : kKeys) {
    const auto value = object.find(key.name);
    if (value == object.end()) continue;
    try {
      set_field(request, key.field, value->dump());
    } catch (const InvalidArgument& error) {
      const std::string_view as = key.name == std::string_view(key.field) ? "" : " as ";
      throw InvalidArgument(str(where, ": ", as.empty() ? "" : key.name, as, error.what()));
    }
  }
}

}  // namespace

SamplingParams default_sampling_params(const EngineConfig& config, SamplingParams base) {
  EngineRequest request;
  request.sampling_params = std::move(base);
  std::string path;
  if (names_a_file(config)) {
    path = named_path(config);
  } else if (config.generation_config == "auto" && is_present(config.model + kFile)) {
    path = config.model + kFile;
  }
  if (!path.empty()) apply(read_object(read_text_file(path), path), path, request);
  const std::string name = "override_generation_config";
  const Json changed = read_object(config.override_generation_config.text, name);
  for (const auto& [key, value] : changed.items()) {
    const auto is_key = [&](const Key& known) { return key == known.name; };
    if (std::ranges::none_of(kKeys, is_key)) {
      throw InvalidArgument(
          str(name, ": '", key.substr(0, 100),
              "' is not read; there are temperature, top_p, top_k, min_p, repetition_penalty "
              "and max_new_tokens"));
    }
  }
  apply(changed, name, request);
  return std::move(request.sampling_params);
}

void check_generation_config(const EngineConfig& config) {
  if (names_a_file(config) || config.override_generation_config != JsonObject())
    default_sampling_params(config);
}

std::vector<int32_t> read_eos_token_ids(const EngineConfig& config, int32_t vocab_size) {
  std::vector<std::string> paths = {
      config.model + kFile, is_gguf_path(config.model) ? config.model : config.model + "/config.json"};
  if (names_a_file(config)) paths.insert(paths.begin(), named_path(config));
  for (const std::string& path : paths) {
    if (!is_present(path)) continue;
    const HfConfig file = is_gguf_path(path) ? read_gguf_config(path) : HfConfig::load(path);
    if (file.has("eos_token_id")) return file.get_ints("eos_token_id", 0, vocab_size - 1);
  }
  return {};
}

}  // namespace quire
