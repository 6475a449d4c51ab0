// Which parameters of a model an adapter changes that PEFT has wrapped by name ('target_parameters').
#pragma once

#include <functional>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/hf_config.h"

namespace quire {

// A parameter that a pair of matrices is of.
struct LoraParameter {
  std::string module;   // what the model calls the linear, or the experts' parameter
  std::string pattern;  // what patterns of ranks are matched with
};

// A module is wrapped once for each of its parameters, in the order in which the module has them: what is
// saved as "<module>.base_layer" is of the one before "<module>"'s.
class LoraParameters {
 public:
  // Throws InvalidArgument for names of parameters that adapters may not change.
  explicit LoraParameters(const HfConfig& config);

  // By those of `names`, sorted, that are no linears': what the file, `path`, has less ".lora_A.weight".
  // Throws InvalidArgument for a module that has not one for each of its parameters.
  std::map<std::string, LoraParameter, std::less<>> find(std::span<const std::string> names,
                                                         const std::string& path) const;

 private:
  // In the order in which models have them.
  std::vector<std::string_view> parameters_of(std::string_view module) const;

  std::string path_;  // of the config
  // By parameter, modules or the ends of their names.
  std::map<std::string, std::set<std::string, std::less<>>, std::less<>> targets_;
};

}  // namespace quire
