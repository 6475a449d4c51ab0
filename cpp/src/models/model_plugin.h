// A library of models beside Quire's own: include this, and what the models are made of, and end the file in
//
//   QUIRE_MODEL_PLUGIN(models) { models.add("CohereForCausalLM", make_cohere); }
//
// where the macro stands in no unnamed namespace. docs/adding_a_model.md has a whole one.
//
// What these headers declare is bound to the exact version of Quire, unlike quire.h: a plugin is built anew
// for each. What it was built against is compared before any of its functions is called.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "layers/mlp.h"
#include "layers/moe.h"
#include "models/causal_lm.h"
#include "models/model_factory.h"
#include "quire/export.h"

#ifndef QUIRE_VERSION
#error "link to quire::model_plugin, as quire_add_model_plugin (CMake, find_package(quire)) does"
#endif

namespace quire QUIRE_MODEL_API {

class ModelRegistrar {
 public:
  // `architecture` is the name that config.json's "architectures" has. Throws InvalidArgument for one without
  // a name or a factory, and for the second of a name.
  virtual void add(const std::string& architecture, ModelFactory factory, ConfigAdapter adapt = nullptr) = 0;

 protected:
  ~ModelRegistrar() = default;
};

// The version (QUIRE_VERSION, from CMake), and sizes, which tell builds with other compilers' libraries
// apart.
constexpr uint64_t model_plugin_version() {
  uint64_t hash = 0xCBF29CE484222325U;  // FNV-1a
  const auto add = [&hash](uint64_t value) { hash = (hash ^ value) * 0x100000001B3U; };
  for (const char c : std::string_view(QUIRE_VERSION)) add(static_cast<uint8_t>(c));
  for (const size_t size :
       {sizeof(std::string), sizeof(KernelTable), sizeof(LaunchContext), sizeof(TensorView), sizeof(HfConfig),
        sizeof(BuildContext), sizeof(ForwardContext), sizeof(ModelInput), sizeof(KVCacheSpec),
        sizeof(TransformerConfig), sizeof(SelfAttentionConfig), sizeof(SelfAttention), sizeof(GatedMLP),
        sizeof(MLP), sizeof(MoE), sizeof(Norm), sizeof(ResidualStream), sizeof(CausalLM)})
    add(size);
  return hash;
}

// Its address tells one loaded libquire from another.
extern const char kModelPluginLibrary;

// The one symbol that a plugin exports, `quire_model_plugin`. The first word is read before the others are
// believed.
struct ModelPlugin {
  uint64_t version;
  const void* library;
  void (*register_models)(ModelRegistrar& models);  // what it throws refuses the plugin
};

}  // namespace quire

#define QUIRE_MODEL_PLUGIN(models)                                                                        \
  static void quire_register_models(::quire::ModelRegistrar& models);                                     \
  extern "C" QUIRE_API const ::quire::ModelPlugin quire_model_plugin;                                     \
  const ::quire::ModelPlugin quire_model_plugin = {::quire::model_plugin_version(),                       \
                                                   &::quire::kModelPluginLibrary, quire_register_models}; \
  static void quire_register_models([[maybe_unused]] ::quire::ModelRegistrar& models)
