#include "layers/quantization.h"

#include <array>
#include <filesystem>
#include <map>

#include "util/str.h"

namespace quire {
namespace {

std::map<std::string, QuantizationFactory>& registry() {
  static std::map<std::string, QuantizationFactory> factories;  // built on first use, before main
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

[[noreturn]] void refuse(const HfConfig& section, const std::string& key, const std::string& method) {
  std::string known;
  for (const auto& [name, factory] : registry()) known += (known.empty() ? "" : " or ") + name;
  const std::string where = key.empty() ? std::string("the weights are quantized") : "'" + key + "'";
  section.fail(str(where, " (", quantization_text(section, method),
                   "): weights quantized like this are not supported; use the model that was quantized, in "
                   "float32, float16 or bfloat16",
                   known.empty() ? "" : str(", or one whose quant_method is ", known)));
}

}  // namespace

bool register_quantization(const char* quant_method, QuantizationFactory factory) {
  registry()[quant_method] = factory;
  return true;
}

std::shared_ptr<const QuantizationConfig> read_quantization(const HfConfig& config,
                                                            const std::string& directory) {
  for (const char* key : {"quantization_config", "compression_config"}) {
    const auto section = config.get_object(key);
    if (!section) continue;
    const auto found = registry().find(section->get_string("quant_method", ""));
    if (found == registry().end()) refuse(*section, key, "no quant_method");
    return found->second(*section);
  }
  // Exports that say it beside config.json only: AutoGPTQ, AutoAWQ, TensorRT Model Optimizer.
  constexpr std::array<std::pair<const char*, const char*>, 3> kFiles = {
      {{"quantize_config.json", "gptq"}, {"quant_config.json", "awq"}, {"hf_quant_config.json", "modelopt"}}};
  for (const auto& [name, method] : kFiles) {
    const std::string path = directory + "/" + name;
    if (std::error_code error; !std::filesystem::exists(path, error)) continue;
    const HfConfig file = HfConfig::load(path);
    refuse(file.get_object("quantization").value_or(file), "", method);
  }
  return nullptr;
}

}  // namespace quire
