#include "models/model_registry.h"

#include <array>
#include <filesystem>
#include <map>

#include "util/str.h"

namespace quire {
namespace {

std::map<std::string, ModelFactory>& registry() {
  static std::map<std::string, ModelFactory> factories;  // built on first use: registration precedes main
  return factories;
}

// "gptq, 4 bits" as a section of a config says it.
std::string quantization_text(const HfConfig& section, const std::string& method) {
  std::string text = method;
  if (section.has("quant_method")) {
    text = section.get_string("quant_method");
  } else if (section.has("quant_algo")) {
    text += " " + section.get_string("quant_algo");
  } else if (section.get_bool("load_in_4bit", false) || section.get_bool("load_in_8bit", false)) {
    text = "bitsandbytes";
  }
  for (const char* key : {"bits", "w_bit"}) {
    if (section.has(key)) return str(text, ", ", section.get_int(key, 1, 64), " bits");
  }
  return text;
}

[[noreturn]] void refuse_quantized(const HfConfig& section, const std::string& key,
                                   const std::string& method) {
  const std::string where = key.empty() ? std::string("the weights are quantized") : "'" + key + "'";
  section.fail(str(where, " (", quantization_text(section, method),
                   "): quantized weights are not supported; use the model that was quantized, in float32, "
                   "float16 or bfloat16"));
}

void check_not_quantized(const HfConfig& config, const std::string& directory) {
  for (const char* key : {"quantization_config", "compression_config"}) {
    if (const auto section = config.get_object(key)) refuse_quantized(*section, key, "no quant_method");
  }
  // Exports that say it beside config.json only: AutoGPTQ, AutoAWQ, TensorRT Model Optimizer.
  constexpr std::array<std::pair<const char*, const char*>, 3> kFiles = {
      {{"quantize_config.json", "gptq"}, {"quant_config.json", "awq"}, {"hf_quant_config.json", "modelopt"}}};
  for (const auto& [name, method] : kFiles) {
    const std::string path = directory + "/" + name;
    if (std::error_code error; !std::filesystem::exists(path, error)) continue;
    const HfConfig file = HfConfig::load(path);
    refuse_quantized(file.get_object("quantization").value_or(file), "", method);
  }
}

}  // namespace

bool register_model_factory(const char* architecture, ModelFactory factory) {
  registry()[architecture] = factory;
  return true;
}

ModelFactory find_model(const HfConfig& config) {
  const auto names = config.get_strings("architectures");
  for (const std::string& name : names) {
    const auto found = registry().find(name);
    if (found != registry().end()) return found->second;
  }
  std::string known;
  for (const auto& [name, factory] : registry()) known += (known.empty() ? "" : ", ") + name;
  config.fail("architecture '" + (names.empty() ? std::string() : names[0]) +
              "' is not supported; supported: " + known);
}

HfConfig load_model_config(const std::string& directory) {
  HfConfig config = HfConfig::load(directory + "/config.json");
  find_model(config);
  check_not_quantized(config, directory);
  return config;
}

}  // namespace quire
