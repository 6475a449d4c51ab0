// Checkpoints of the compressed-tensors library (llm-compressor, Red Hat's models): weights of int8 with a
// scale for each output, inputs in the model's dtype (W8A16).
#include <optional>
#include <regex>
#include <vector>

#include "layers/int8_linear_method.h"
#include "layers/quantization.h"
#include "quire/error.h"
#include "util/str.h"

namespace quire {
namespace {

// One entry of `ignore` or `targets`: the name of a layer, "re:" and an expression that a name begins with,
// or, of targets, the class of a layer.
class NamePattern {
 public:
  NamePattern(const HfConfig& section, const std::string& text) : text_(text) {
    constexpr size_t kMaxLength = 1000;
    if (!text.starts_with("re:")) return;
    try {
      // Polynomial time, whatever the expression.
      if (text.size() > kMaxLength) throw std::regex_error(std::regex_constants::error_space);
      regex_ = std::regex(text.substr(3), std::regex::ECMAScript | std::regex_constants::__polynomial);
    } catch (const std::regex_error& error) {
      section.fail(str("the expression '", text.substr(0, 100), "' cannot be read: ", error.what()));
    }
  }

  bool matches(const std::string& name) const {
    if (!regex_) return name == text_;
    return std::regex_search(name, *regex_, std::regex_constants::match_continuous);
  }
  bool is_every_linear() const { return text_ == "Linear"; }

 private:
  std::string text_;
  std::optional<std::regex> regex_;
};

std::vector<NamePattern> read_patterns(const HfConfig& section, const std::string& key) {
  std::vector<NamePattern> patterns;
  if (!section.has(key)) return patterns;
  for (const std::string& text : section.get_strings(key)) patterns.emplace_back(section, text);
  return patterns;
}

bool any_matches(const std::vector<NamePattern>& patterns, const std::string& name) {
  for (const NamePattern& pattern : patterns) {
    if (pattern.matches(name)) return true;
  }
  return false;
}

struct Scheme {
  std::vector<NamePattern> targets;
  Int8Storage storage;
};

// What must be so for a scheme's weights to be W8A16 of one scale an output.
void check_weights(const HfConfig& scheme) {
  for (const char* key : {"input_activations", "output_activations"}) {
    if (scheme.has(key)) {
      scheme.fail(
          str("'", key, "' is not supported: activations are not quantized (W8A16 is what would do)"));
    }
  }
  const auto weights = scheme.get_object("weights");
  if (!weights) scheme.fail("'weights' is missing");
  const int32_t num_bits = weights->get_int("num_bits", 1, 64, 8);
  const std::string type = weights->get_string("type", "int");
  const std::string strategy = weights->get_string("strategy", "tensor");
  if (num_bits != 8 || type != "int") {
    weights->fail(
        str("weights of ", num_bits, " bits of type '", type, "' are not supported; supported: 8, int"));
  }
  if (strategy != "channel") {
    weights->fail(str("'strategy' '", strategy, "' is not supported; supported: channel"));
  }
  if (weights->get_bool("dynamic", false)) weights->fail("'dynamic' true is not supported for weights");
}

Int8Storage read_storage(const HfConfig& section, const HfConfig& scheme) {
  const std::string format =
      scheme.has("format") ? scheme.get_string("format") : section.get_string("format");
  Int8Storage storage;
  storage.packed = format == "pack-quantized";
  if (!storage.packed && format != "int-quantized" && format != "naive-quantized") {
    section.fail(str("'format' '", format,
                     "' is not supported; supported: pack-quantized, int-quantized, "
                     "naive-quantized"));
  }
  storage.has_zero_points = !scheme.get_object("weights")->get_bool("symmetric", true);
  return storage;
}

class CompressedTensorsConfig final : public QuantizationConfig {
 public:
  explicit CompressedTensorsConfig(const HfConfig& section) : ignore_(read_patterns(section, "ignore")) {
    const std::string status = section.get_string("quantization_status", "compressed");
    if (status != "compressed") {
      section.fail(str("'quantization_status' '", status, "' is not supported; supported: compressed"));
    }
    for (const char* key : {"kv_cache_scheme", "transform_config", "sparsity_config"}) {
      const auto object = section.get_object(key);
      if (object && !object->keys().empty() && object->get_string("format", "") != "dense") {
        section.fail(str("'", key, "' is not supported"));
      }
    }
    const auto groups = section.get_object("config_groups");
    if (!groups || groups->keys().empty()) section.fail("'config_groups' is missing");
    for (const std::string& name : groups->keys()) {
      const auto scheme = groups->get_object(name);
      if (!scheme) groups->fail(str("'", name, "' must be an object"));
      check_weights(*scheme);
      schemes_.push_back({read_patterns(*scheme, "targets"), read_storage(section, *scheme)});
    }
  }

  std::unique_ptr<LinearMethod> make_linear_method(BuildContext& build,
                                                   const LinearShard& shard) const override {
    const LinearPart& first = shard.parts.front();
    const std::optional<Int8Storage> storage = storage_of(first.name);
    for (const LinearPart& part : shard.parts) {
      if (storage_of(part.name) == storage) continue;
      throw InvalidArgument(str(build.checkpoint.directory(), ": '", first.name, "' and '", part.name,
                                "' are quantized differently, and are computed as one product; quantize them "
                                "alike, or neither"));
    }
    return storage ? make_int8_linear_method(build, shard, *storage)
                   : make_unquantized_linear_method(build, shard);
  }

 private:
  // Names count before classes.
  std::optional<Int8Storage> storage_of(const std::string& name) const {
    if (any_matches(ignore_, name)) return std::nullopt;
    for (const Scheme& scheme : schemes_) {
      if (any_matches(scheme.targets, name)) return scheme.storage;
    }
    for (const Scheme& scheme : schemes_) {
      for (const NamePattern& target : scheme.targets) {
        if (target.is_every_linear()) return scheme.storage;
      }
    }
    return std::nullopt;
  }

  std::vector<NamePattern> ignore_;
  std::vector<Scheme> schemes_;
};

const bool registered_compressed_tensors =
    register_quantization("compressed-tensors", [](const HfConfig& section) {
      return std::shared_ptr<const QuantizationConfig>(std::make_shared<CompressedTensorsConfig>(section));
    });

}  // namespace
}  // namespace quire
