#include "formats/gguf_config.h"

#include <array>
#include <limits>

#include "formats/json.h"
#include "quire/error.h"
#include "util/str.h"

namespace quire {
namespace gguf {
namespace {

constexpr std::array<std::pair<const char*, const char*>, 4> kArchitectures = {
    {{"llama", "LlamaForCausalLM"},
     {"qwen2", "Qwen2ForCausalLM"},
     {"qwen3", "Qwen3ForCausalLM"},
     {"gemma2", "Gemma2ForCausalLM"}}};
constexpr int64_t kMaxInt = std::numeric_limits<int32_t>::max();

// What a file says under "<architecture>.".
class Keys {
 public:
  explicit Keys(const GgufHeader& header)
      : header_(header), prefix_(header.get_string("general.architecture") + ".") {}

  bool has(const char* key) const { return header_.has(prefix_ + key); }
  int64_t integer(const char* key, int64_t min = 1) const {
    return header_.get_int(prefix_ + key, min, kMaxInt);
  }
  int64_t integer_or(const char* key, int64_t otherwise) const {
    return has(key) ? integer(key, 0) : otherwise;
  }
  double number(const char* key) const { return header_.get_number(prefix_ + key); }
  std::string string_or(const char* key, const char* otherwise) const {
    return has(key) ? header_.get_string(prefix_ + key) : otherwise;
  }
  [[noreturn]] void fail(const char* key, const std::string& what) const {
    header_.fail(str("'", prefix_, key, "' ", what));
  }

 private:
  const GgufHeader& header_;
  std::string prefix_;
};

const char* hf_architecture(const GgufHeader& header) {
  const std::string& given = header.get_string("general.architecture");
  std::string known;
  for (const auto& [name, architecture] : kArchitectures) {
    if (given == name) return architecture;
    known += str(known.empty() ? "" : ", ", name);
  }
  header.fail(str("'general.architecture' is '", given, "', which is not read; read are ", known));
}

// Divisors of the frequencies, which the converter makes of Llama 3.1's scaling.
Json read_rope_factors(const GgufFile& file, const GgufTensor& tensor) {
  if (tensor.type != GgmlType::kF32 || tensor.shape.size() != 1 || tensor.shape[0] > 4096)
    file.header().fail("tensor 'rope_freqs.weight' must be a row of at most 4096 values of F32");
  std::vector<float> factors(static_cast<size_t>(tensor.shape[0]));
  file.read_at(tensor.position, std::as_writable_bytes(std::span(factors)));
  Json out = Json::array();
  for (const float factor : factors) {
    if (!(factor > 0) || factor > 1e9F)
      file.header().fail(str("tensor 'rope_freqs.weight' holds ", factor, "; factors above 0 are expected"));
    out.push_back(factor);
  }
  return out;
}

Json rope_scaling(const GgufFile& file, const Keys& keys) {
  if (const GgufTensor* tensor = file.header().find_tensor("rope_freqs.weight")) {
    Json factors = read_rope_factors(file, *tensor);
    return {{"rope_type", "longrope"},
            {"short_factor", factors},
            {"long_factor", factors},
            {"attention_factor", 1.0}};
  }
  const std::string type = keys.string_or("rope.scaling.type", "none");
  if (type == "none") return nullptr;
  if (type != "linear" && type != "yarn")
    keys.fail("rope.scaling.type", str("is '", type, "'; none, linear and yarn are read"));
  Json scaling = {{"rope_type", type}, {"factor", keys.number("rope.scaling.factor")}};
  if (keys.has("rope.scaling.original_context_length"))
    scaling["original_max_position_embeddings"] = keys.integer("rope.scaling.original_context_length");
  return scaling;
}

// The end of a text and of a turn: either ends an answer.
Json eos_token_ids(const GgufHeader& header) {
  Json ids = Json::array();
  for (const char* key :
       {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"}) {
    if (!header.has(key)) continue;
    const int64_t id = header.get_int(key, 0, kMaxInt);
    if (std::ranges::find(ids, Json(id)) == ids.end()) ids.push_back(id);
  }
  return ids;
}

// Dimensions of heads, and what is not computed.
void add_heads(const Keys& keys, int64_t num_heads, int64_t hidden_size, Json& config) {
  for (const char* key : {"expert_count", "expert_used_count"})
    if (keys.integer_or(key, 0) > 0) keys.fail(key, "says that there are experts, which are not computed");
  const int64_t head_size = keys.integer_or("attention.key_length", hidden_size / num_heads);
  if (keys.integer_or("attention.value_length", head_size) != head_size)
    keys.fail("attention.value_length", str("must be attention.key_length, ", head_size));
  if (head_size < 1) keys.fail("attention.key_length", "must be at least 1");
  config["head_dim"] = head_size;
  if (keys.integer_or("rope.dimension_count", head_size) != head_size)
    keys.fail("rope.dimension_count", str("must be the size of a head, ", head_size));
}

void add_gemma2(const Keys& keys, Json& config) {
  config["hidden_activation"] = "gelu_pytorch_tanh";
  config["tie_word_embeddings"] = true;
  for (const auto& [key, name] : {std::pair("attn_logit_softcapping", "attn_logit_softcapping"),
                                  std::pair("final_logit_softcapping", "final_logit_softcapping")})
    config[name] = keys.has(key) ? Json(keys.number(key)) : Json(nullptr);
  config["sliding_window"] =
      keys.has("attention.sliding_window") ? Json(keys.integer("attention.sliding_window")) : Json(nullptr);
  // No key has the scalar. That of the 27B model, known by its layers, is not the size of a head.
  config["query_pre_attn_scalar"] =
      config.at("num_hidden_layers") == 46
          ? config.at("hidden_size").get<int64_t>() / config.at("num_attention_heads").get<int64_t>()
          : config.at("head_dim").get<int64_t>();
}

}  // namespace
}  // namespace gguf

GgufWeights::Layout gguf_layout(const GgufHeader& header) {
  gguf::hf_architecture(header);
  const gguf::Keys keys(header);
  const int64_t num_heads = keys.integer("attention.head_count");
  return {header.get_string("general.architecture"), num_heads,
          keys.has("attention.head_count_kv") ? keys.integer("attention.head_count_kv") : num_heads};
}

HfConfig read_gguf_config(const std::string& path) {
  const std::string first = gguf_parts(path)[0];
  const GgufFile file(first);
  const GgufHeader& header = file.header();
  const gguf::Keys keys(header);
  const GgufWeights::Layout layout = gguf_layout(header);
  const auto is_in_a_part = [&](const char* name) {
    if (header.find_tensor(name) != nullptr) return true;
    const auto parts = gguf_parts(first);
    return std::any_of(parts.begin() + 1, parts.end(), [&](const std::string& part) {
      return GgufFile(part).header().find_tensor(name) != nullptr;
    });
  };
  const int64_t hidden_size = keys.integer("embedding_length");
  const GgufTensor* embeddings = header.find_tensor("token_embd.weight");
  Json config = {
      {"architectures", {gguf::hf_architecture(header)}},
      {"model_type", layout.architecture},
      {"hidden_size", hidden_size},
      {"intermediate_size", keys.integer("feed_forward_length")},
      {"num_hidden_layers", keys.integer("block_count")},
      {"num_attention_heads", layout.num_heads},
      {"num_key_value_heads", layout.num_kv_heads},
      {"max_position_embeddings", keys.integer("context_length")},
      {"rms_norm_eps", keys.number("attention.layer_norm_rms_epsilon")},
      {"rope_theta", keys.has("rope.freq_base") ? keys.number("rope.freq_base") : 10000.0},
      {"rope_scaling", gguf::rope_scaling(file, keys)},
      {"eos_token_id", gguf::eos_token_ids(header)},
      {"vocab_size", embeddings != nullptr && embeddings->shape.size() == 2 ? embeddings->shape[0]
                                                                            : keys.integer("vocab_size")},
      {"tie_word_embeddings", !is_in_a_part("output.weight")}};
  gguf::add_heads(keys, layout.num_heads, hidden_size, config);
  if (layout.architecture == "llama") {
    config["attention_bias"] = is_in_a_part("blk.0.attn_q.bias");
    config["mlp_bias"] = is_in_a_part("blk.0.ffn_up.bias");
  }
  if (layout.architecture == "gemma2") gguf::add_gemma2(keys, config);
  return HfConfig::parse(config.dump(-1, ' ', false, Json::error_handler_t::replace), first);
}

HfConfig read_model_config(const std::string& model) {
  return is_gguf_path(model) ? read_gguf_config(model) : HfConfig::load(model + "/config.json");
}

}  // namespace quire
