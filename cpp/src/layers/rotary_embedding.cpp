#include "layers/rotary_embedding.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "util/check.h"

namespace quire {
namespace {

constexpr int32_t kMaxPositions = 1 << 28;
constexpr const char* kPartialFactor = "partial_rotary_factor";

// rope_parameters holds everything in transformers 5; before, theta stood apart and rope_scaling was
// optional. It still counts before rope_parameters: people write it into checkpoints that have both.
// Where kinds of layers differ, rope_parameters has an object for each of them.
struct Source {
  const HfConfig& config;
  std::optional<HfConfig> parameters;
  std::string type;
  bool is_of_kind = false;  // of layers

  RotaryDefaults otherwise;

  Source(const HfConfig& config, const RotaryDefaults& otherwise) : config(config), otherwise(otherwise) {
    const char* name = "rope_scaling";
    parameters = config.get_object("rope_parameters");
    if (parameters && !otherwise.layer_type.empty() && parameters->is_object(otherwise.layer_type)) {
      parameters = parameters->get_object(otherwise.layer_type);
      is_of_kind = true;
    } else {
      parameters = config.get_object(name);
      if (!parameters || parameters->keys().empty()) parameters = config.get_object(name = "rope_parameters");
    }
    refuse_parts(name);
    if (!parameters) {
      type = "default";
    } else if (parameters->has("rope_type")) {
      type = parameters->get_string("rope_type");
    } else {
      type = parameters->get_string("type", "default");
    }
    if (type == "yarn" && otherwise.yarn_is_longrope) type = "longrope";
  }
  void refuse_parts(const std::string& name) const {
    if (!parameters) return;
    for (const std::string& key : parameters->keys()) {
      if (parameters->is_object(key))
        parameters->fail("'" + name + "." + key +
                         "' is an object; it must be one set of values for all layers");
    }
  }
  double theta() const {
    if (parameters && parameters->has("rope_theta")) return parameters->get_positive("rope_theta");
    return config.get_positive(otherwise.theta_key, otherwise.theta);
  }
  int32_t max_positions() const { return config.get_int("max_position_embeddings", 1, kMaxPositions); }
  // What stands beside rope_parameters counts first, unless kinds of layers have parameters of their own.
  int32_t original_max_positions() const {
    constexpr const char* kKey = "original_max_position_embeddings";
    if (!is_of_kind && config.has(kKey)) return config.get_int(kKey, 2, kMaxPositions);
    if (!is_of_kind && otherwise.original_max_positions) return *otherwise.original_max_positions;
    return parameters->has(kKey) ? parameters->get_int(kKey, 2, kMaxPositions) : max_positions();
  }
  // Given, or what the longer context is of the original one.
  double factor() const {
    if (parameters->has("factor")) return parameters->get_positive("factor");
    return double(max_positions()) / original_max_positions();
  }
  bool has_partial_factor() const { return parameters && parameters->has(kPartialFactor); }
  const char* partial_key() const { return has_partial_factor() ? kPartialFactor : otherwise.partial_key; }
  double partial_rotary_factor() const {
    const bool is_whole = !otherwise.partial_rotary_factor;
    if (is_whole && type == "default") return 1.0;
    const HfConfig& holder = has_partial_factor() ? *parameters : config;
    const double factor = holder.get_positive(partial_key(), otherwise.partial_rotary_factor.value_or(1.0));
    // transformers has angles of that many dimensions then, and adds up tensors that do not fit.
    if (is_whole && factor != 1.0)
      holder.fail("'" + std::string(partial_key()) + "' must be 1 where 'rope_type' is '" + type +
                  "': this architecture rotates whole heads; got " + std::to_string(factor));
    return factor;
  }
};

std::vector<double> plain_frequencies(double theta, int32_t dim) {
  std::vector<double> frequencies;
  for (int32_t i = 0; i < dim; i += 2) frequencies.push_back(1.0 / std::pow(theta, double(i) / dim));
  return frequencies;
}

// Low frequencies are stretched, high ones kept, those between blended.
void scale_llama3(const Source& source, RotaryConfig& out) {
  const HfConfig& p = *source.parameters;
  const double factor = p.get_positive("factor");
  const double low = p.get_positive("low_freq_factor");
  const double high = p.get_positive("high_freq_factor");
  const double length = source.original_max_positions();
  if (high <= low) p.fail("'rope_scaling.high_freq_factor' must be above low_freq_factor");
  for (double& frequency : out.inverse_frequencies) {
    const double wavelength = 2 * std::numbers::pi / frequency;
    if (wavelength < length / high) continue;
    if (wavelength > length / low) {
      frequency /= factor;
    } else {
      const double smooth = (length / wavelength - low) / (high - low);
      frequency = (1 - smooth) * frequency / factor + smooth * frequency;
    }
  }
}

// Peng et al., "YaRN" (2023).
void scale_yarn(const Source& source, RotaryConfig& out) {
  const HfConfig& p = *source.parameters;
  const double factor = source.factor();
  const double theta = source.theta();
  const double length = source.original_max_positions();
  const int32_t dim = out.rotary_dim;
  const auto dimension_of = [&](double rotations) {
    return dim * std::log(length / (rotations * 2 * std::numbers::pi)) / (2 * std::log(theta));
  };
  double low = dimension_of(p.get_positive("beta_fast", 32.0));
  double high = dimension_of(p.get_positive("beta_slow", 1.0));
  if (p.get_bool("truncate", true)) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, double(dim - 1));
  if (low == high) high += 0.001;
  for (size_t i = 0; i < out.inverse_frequencies.size(); ++i) {
    const double interpolated = std::clamp((double(i) - low) / (high - low), 0.0, 1.0);
    double& frequency = out.inverse_frequencies[i];
    frequency = frequency / factor * interpolated + frequency * (1 - interpolated);
  }
  const auto mscale = [&](double weight) {
    return factor <= 1 ? 1.0 : 0.1 * weight * std::log(factor) + 1.0;
  };
  if (p.has("attention_factor")) {
    out.attention_factor = p.get_positive("attention_factor");
  } else if (p.has("mscale") && p.has("mscale_all_dim")) {
    out.attention_factor = mscale(p.get_positive("mscale")) / mscale(p.get_positive("mscale_all_dim"));
  } else {
    out.attention_factor = mscale(1.0);
  }
}

// Ding et al., "LongRoPE" (2024): one set of factors for short contexts, one for long.
void scale_longrope(const Source& source, int32_t max_model_len, RotaryConfig& out) {
  const HfConfig& p = *source.parameters;
  const double length = source.original_max_positions();
  const char* key = max_model_len > length ? "long_factor" : "short_factor";
  const std::vector<double> factors = p.get_numbers(key);
  if (factors.size() != out.inverse_frequencies.size()) {
    p.fail("'rope_scaling." + std::string(key) + "' must have " +
           std::to_string(out.inverse_frequencies.size()) + " numbers, got " +
           std::to_string(factors.size()));
  }
  for (size_t i = 0; i < factors.size(); ++i) {
    if (!(factors[i] > 0) || factors[i] > 1e9)
      p.fail("'rope_scaling." + std::string(key) + "' must hold numbers above 0, at most 1e9; got " +
             std::to_string(factors[i]));
    out.inverse_frequencies[i] /= factors[i];
  }
  const double factor = source.factor();
  out.attention_factor = p.has("attention_factor") ? p.get_positive("attention_factor")
                         : factor <= 1             ? 1.0
                                                   : std::sqrt(1 + std::log(factor) / std::log(length));
}

}  // namespace

RotaryConfig RotaryConfig::read(const HfConfig& config, int32_t head_size, int32_t max_model_len,
                                const RotaryDefaults& otherwise) {
  const Source source(config, otherwise);
  RotaryConfig out;
  out.rotary_dim = static_cast<int32_t>(head_size * source.partial_rotary_factor());
  if (out.rotary_dim < 2 || out.rotary_dim > head_size || out.rotary_dim % 2 != 0) {
    config.fail("'" + std::string(source.partial_key()) + "' gives a rotary size of " +
                std::to_string(out.rotary_dim) + "; it must be even and at most the head size, " +
                std::to_string(head_size));
  }
  const int32_t dim = out.rotary_dim;
  double theta = source.theta();
  if (source.type == "dynamic") {
    // NTK-aware: the base grows with the length beyond the trained one.
    const double factor = source.parameters->get_positive("factor");
    const double trained = source.max_positions();
    const double length = std::max<double>(max_model_len, trained);
    theta *= std::pow(factor * length / trained - (factor - 1), double(dim) / (dim - 2));
  }
  out.inverse_frequencies = plain_frequencies(theta, dim);
  if (source.type == "linear") {
    for (double& frequency : out.inverse_frequencies) frequency /= source.parameters->get_positive("factor");
  } else if (source.type == "llama3") {
    scale_llama3(source, out);
  } else if (source.type == "yarn") {
    scale_yarn(source, out);
  } else if (source.type == "longrope" || source.type == "su") {
    scale_longrope(source, max_model_len, out);
  } else if (source.type != "default" && source.type != "dynamic") {
    config.fail("rope_type '" + source.type +
                "' is not supported; supported: default, linear, dynamic, llama3, yarn, longrope");
  }
  return out;
}

RotaryConfig RotaryConfig::plain(int32_t rotary_dim, double theta) {
  RotaryConfig out;
  out.rotary_dim = rotary_dim;
  out.inverse_frequencies = plain_frequencies(theta, rotary_dim);
  return out;
}

int32_t max_supported_positions(const HfConfig& config) {
  const Source source(config, {.layer_type = "full_attention"});
  double positions = source.max_positions();
  if (source.type == "linear" || source.type == "dynamic") {
    positions *= std::max(source.parameters->get_positive("factor"), 1.0);
  } else if (source.type == "yarn") {
    positions = std::max(positions, source.original_max_positions() * source.factor());
  }
  return static_cast<int32_t>(std::min<double>(positions, kMaxPositions));
}

RotaryEmbedding::RotaryEmbedding(BuildContext& build, const RotaryConfig& config)
    : interleaved_(config.interleaved) {
  const size_t row_bytes = static_cast<size_t>(config.rotary_dim) * sizeof(float);
  const int32_t positions = build.max_model_len;
  cos_sin_ = {build.arena.allocate_computed(static_cast<size_t>(positions) * row_bytes), DType::kFloat32,
              positions, config.rotary_dim};
  build.loader.generate(
      cos_sin_.data, positions, row_bytes, [config](int64_t begin, int64_t end, std::byte* out) {
        const size_t half = config.inverse_frequencies.size();
        auto* row = reinterpret_cast<float*>(out);
        for (int64_t position = begin; position < end; ++position, row += 2 * half) {
          for (size_t i = 0; i < half; ++i) {
            // Rounded as transformers rounds: the frequency, then the angle, in fp32.
            const float angle =
                static_cast<float>(config.inverse_frequencies[i]) * static_cast<float>(position);
            row[i] = static_cast<float>(std::cos(double(angle)) * config.attention_factor);
            row[half + i] = static_cast<float>(std::sin(double(angle)) * config.attention_factor);
          }
        }
      });
}

std::shared_ptr<const RotaryEmbedding> make_rotary_embedding(BuildContext& build, const HfConfig& config,
                                                             int32_t head_size,
                                                             const RotaryDefaults& otherwise) {
  return std::make_shared<RotaryEmbedding>(
      build, RotaryConfig::read(config, head_size, build.max_model_len, otherwise));
}

void RotaryEmbedding::forward_and_store(const ForwardContext& ctx, TensorView q, TensorView k, TensorView v,
                                        const HeadNorms* norms, TensorView positions,
                                        const KVCacheView& kv_cache, TensorView slot_mapping) const {
  QUIRE_CHECK(positions.rank == 1, "this rotary embedding knows one position a token, not ",
              positions.shape[0]);
  if (ctx.ops.rotary_embedding_and_write_kv != nullptr) {
    ctx.ops.rotary_embedding_and_write_kv(ctx.launch, q, k, v, norms, positions, cos_sin_, interleaved_,
                                          kv_cache, slot_mapping);
    return;
  }
  if (norms != nullptr) {
    ctx.ops.rms_norm(ctx.launch, q, q, norms->q_weight, norms->eps, norms->weight_offset);
    ctx.ops.rms_norm(ctx.launch, k, k, norms->k_weight, norms->eps, norms->weight_offset);
  }
  ctx.ops.rotary_embedding(ctx.launch, q, k, positions, cos_sin_, interleaved_);
  ctx.ops.write_kv_cache(ctx.launch, kv_cache, k, v, slot_mapping);
}

}  // namespace quire
