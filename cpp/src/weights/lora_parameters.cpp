#include "weights/lora_parameters.h"

#include <algorithm>
#include <array>

#include "quire/error.h"
#include "util/str.h"
#include "util/utf8.h"

namespace quire {
namespace {

constexpr const char* kKey = "target_parameters";
constexpr std::string_view kWrapped = ".base_layer";
constexpr const char* kExperts = "experts";
constexpr std::string_view kWeight = "weight";
// In the order in which experts have the first two.
constexpr std::array<std::string_view, 3> kParameters = {"gate_up_proj", "down_proj", kWeight};

std::string short_name(const std::string& name) {
  constexpr size_t kMaxBytes = 80;
  return name.size() <= kMaxBytes ? name : name.substr(0, previous_utf8(name, kMaxBytes - 2)) + "...";
}

}  // namespace

LoraParameters::LoraParameters(const HfConfig& config) : path_(config.path()) {
  const std::string json = config.get_json(kKey);
  if (json == "null") return;
  for (const std::string& name : config.get_strings(kKey)) {
    const size_t dot = name.rfind('.');
    const std::string parameter = name.substr(dot == name.npos ? 0 : dot + 1);
    const std::string module = dot == name.npos ? kExperts : name.substr(0, dot);
    const bool is_known = std::ranges::find(kParameters, parameter) != kParameters.end();
    const bool has_experts = module == kExperts || module.ends_with(str(".", kExperts));
    if (!is_known || dot == 0 || has_experts == (parameter == kWeight)) {
      config.fail(
          str("'", kKey, "' has '", short_name(name),
              "'; adapters may change the parameters gate_up_proj and down_proj of experts, and those "
              "called <module>.weight"));
    }
    targets_[parameter].insert(module);
  }
}

std::vector<std::string_view> LoraParameters::parameters_of(std::string_view module) const {
  std::vector<std::string_view> found;
  for (const std::string_view parameter : kParameters) {
    const auto targets = targets_.find(parameter);
    if (targets == targets_.end()) continue;
    bool is_there = targets->second.contains(module);
    for (size_t dot = module.find('.'); dot != module.npos && !is_there; dot = module.find('.', dot + 1))
      is_there = targets->second.contains(module.substr(dot + 1));
    if (is_there) found.push_back(parameter);
  }
  return found;
}

std::map<std::string, LoraParameter, std::less<>> LoraParameters::find(std::span<const std::string> names,
                                                                       const std::string& path) const {
  std::map<std::string, LoraParameter, std::less<>> found;
  if (targets_.empty()) return found;
  for (const std::string& name : names) {
    std::string_view module = name;
    while (module.ends_with(kWrapped)) module.remove_suffix(kWrapped.size());
    const std::vector<std::string_view> parameters = parameters_of(module);
    std::string wrapped(module);
    for (auto parameter = parameters.rbegin(); parameter != parameters.rend(); ++parameter) {
      const std::string whole = str(module, ".", *parameter);
      if (!std::ranges::binary_search(names, wrapped)) {
        throw InvalidArgument(str(path, ": has nothing of '", whole, "', which '", kKey, "' of ", path_,
                                  " names: module '", wrapped, "' is missing"));
      }
      found[wrapped] = {*parameter == kWeight ? std::string(module) : whole, whole};
      wrapped += kWrapped;
    }
  }
  return found;
}

}  // namespace quire
