// Rotary position embeddings (Su et al., 2021), with the scalings transformers knows.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "formats/hf_config.h"
#include "layers/context.h"
#include "quire/export.h"

namespace quire QUIRE_MODEL_API {

// How an architecture reads config.json, and what it means where that is silent.
struct RotaryDefaults {
  double theta = 10000.0;
  // Where there is none whole heads are rotated, whatever config.json says.
  std::optional<double> partial_rotary_factor = {};
  // Where there is one it counts before what rope_parameters says, as does config.json's own.
  std::optional<int32_t> original_max_positions = {};
  // What theta and the rotated part are called beside rope_parameters.
  const char* theta_key = "rope_theta";
  const char* partial_key = "partial_rotary_factor";
  bool yarn_is_longrope = false;  // as early checkpoints call it
  std::string layer_type = {};    // "sliding_attention", where rope_parameters has an object for each kind
};

// What config.json says. Frequencies are fixed per engine from max_model_len, because cached keys cannot
// change: `dynamic` and `longrope` use what transformers would use for a sequence of that length.
struct RotaryConfig {
  // Reads rope_parameters (transformers 5), or rope_theta and rope_scaling. Throws InvalidArgument for a
  // missing key, a value out of range, or an unknown rope_type.
  static RotaryConfig read(const HfConfig& config, int32_t head_size, int32_t max_model_len,
                           const RotaryDefaults& otherwise = {});
  // Without a scaling.
  static RotaryConfig plain(int32_t rotary_dim, double theta);

  int32_t rotary_dim = 0;
  std::vector<double> inverse_frequencies;  // [rotary_dim / 2], radians a position
  double attention_factor = 1.0;            // scales cosines and sines
  bool interleaved = false;                 // pairs are neighbours (GPT-J), not half a head apart (GPT-NeoX)
};

// Longest sequence that the config's scaling is meant for.
int32_t max_supported_positions(const HfConfig& config);

// The table of cosines and sines; one for all layers.
class RotaryEmbedding {
 public:
  // In build's memory, for build.max_model_len positions.
  RotaryEmbedding(BuildContext& build, const RotaryConfig& config);

  // Norms the heads of q and k where there are `norms` (else null), rotates q in place, and stores the
  // rotation of k, and v, in the cache. k is scratch afterwards.
  //   q [T, H, D], k, v [T, KH, D], positions [T] int32, slot_mapping [T] int64
  void forward_and_store(const ForwardContext& ctx, TensorView q, TensorView k, TensorView v,
                         const HeadNorms* norms, TensorView positions, const KVCacheView& kv_cache,
                         TensorView slot_mapping) const;

 private:
  TensorView cos_sin_;  // [max_model_len, rotary_dim] fp32
  bool interleaved_;
};

// The embedding that config.json describes, for layers to share.
std::shared_ptr<const RotaryEmbedding> make_rotary_embedding(BuildContext& build, const HfConfig& config,
                                                             int32_t head_size,
                                                             const RotaryDefaults& otherwise = {});

}  // namespace quire
