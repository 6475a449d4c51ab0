#include "weights/lora_adapter.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "formats/file_stamp.h"
#include "formats/hf_config.h"
#include "formats/json.h"
#include "formats/json_tree.h"
#include "quire/error.h"
#include "util/for_each_on_threads.h"
#include "util/sha256.h"
#include "util/str.h"
#include "util/utf8.h"
#include "weights/lora_parameters.h"
#include "weights/shape_text.h"

namespace quire {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "base_model.model.";
// Of a tensor. A pattern is looked for behind each dot, which a stranger's name could be full of.
constexpr size_t kMaxNameBytes = 1000;
constexpr int32_t kMaxRank = std::numeric_limits<int32_t>::max();

constexpr const char* kMerge =
    "merge the adapter into its model with peft's merge_and_unload, and give that model";
constexpr const char* kTrain = "train it without";

// Keys under which an adapter is more than products of matrices that are added, or other ones.
struct UnsupportedKey {
  const char* key;
  const char* what;
  const char* advice;
};
constexpr UnsupportedKey kUnsupportedKeys[] = {
    {"use_dora", "DoRA, which scales the model's own weights,", kMerge},
    {"lora_bias", "a bias in the adapter", kMerge},
    {"modules_to_save", "an adapter that replaces modules of the model", kMerge},
    {"trainable_token_indices", "an adapter that replaces embeddings of tokens", kMerge},
    {"layer_replication", "an adapter that repeats layers of the model", kMerge},
    {"kasa_config", "KaSA, which changes the model's own weights,", kMerge},
    {"use_bdlora", "BD-LoRA, whose matrices are block-diagonal,", kMerge},
    {"velora_config", "VeLoRA", kMerge},
    {"monteclora_config", "Monteclora", kMerge},
    {"use_qalora", "QALoRA, which averages the inputs of groups,", kTrain},
    {"alora_invocation_tokens", "aLoRA, which begins at certain tokens,", kTrain},
    {"arrow_config", "Arrow, which chooses among adapters,", kTrain},
    {"megatron_config", "an adapter of Megatron's layers", "convert the model, and train it on that"}};

void check_supported(const HfConfig& config) {
  const std::string type = config.get_string("peft_type");
  if (type != "LORA") config.fail(str("'peft_type' must be 'LORA', got '", shorten_text(type), "'"));
  for (const UnsupportedKey& each : kUnsupportedKeys) {
    const std::string value = config.get_json(each.key);
    if (value == "null" || value == "false" || value == "[]" || value == "{}") continue;
    config.fail(str("'", each.key, "' is ", shorten_text(value), ": ", each.what, " is not supported; ",
                    each.advice));
  }
  const std::string bias = config.get_string("bias", "none");
  if (bias != "none") {
    config.fail(str("'bias' must be 'none', got '", shorten_text(bias),
                    "': an adapter that replaces biases of the model is not supported; ", kMerge));
  }
}

// Some ways to begin training put a part of the model's own weights into the adapter and leave the model the
// rest, to which the adapter belongs then.
void check_begun_beside_the_model(const HfConfig& config) {
  constexpr const char* kKey = "init_lora_weights";
  const std::string json = config.get_json(kKey);
  if (json == "null" || json == "true" || json == "false") return;
  const std::string given = config.get_string(kKey);
  std::string value = given;
  std::ranges::transform(value, value.begin(), [](unsigned char c) { return std::tolower(c); });
  for (const char* known : {"gaussian", "eva", "orthogonal", "mica"}) {
    if (value == known) return;
  }
  const bool can_be_converted =
      value.starts_with("pissa") || value.starts_with("corda") || value == "olora" || value == "lora_ga";
  const std::string is = str("'", kKey, "' is '", shorten_text(given), "'");
  if (can_be_converted) {
    config.fail(str(is,
                    ": the adapter belongs to weights that were changed when training began; save it with "
                    "path_initial_model_for_weight_conversion of peft's save_pretrained, for the weights "
                    "as they are"));
  }
  if (value == "loftq") {
    config.fail(
        str(is, ": the adapter belongs to weights that were quantized when training began; ", kMerge));
  }
  config.fail(str(is,
                  ", which is not known; true, false, 'gaussian', 'eva', 'orthogonal' and 'mica' leave the "
                  "model's own weights as they are"));
}

// rank_pattern or alpha_pattern: what modules have instead of the number that is for all. PEFT matches a
// module's name, or what is behind one of its dots, with regular expressions, the first in the file's order.
class Patterns {
 public:
  // `value` reads that of a pattern.
  Patterns(const HfConfig& config, const JsonTree& tree, const char* key,
           const std::function<double(const HfConfig&, const std::string&)>& value) {
    const std::optional<HfConfig> values = config.get_object(key);
    if (!values) return;
    for (const auto& [pattern, unused] : *tree.find(key)->object()) {
      const bool is_whole = pattern.starts_with('^');
      // What peft makes of an older adapter of experts has any names before its own.
      constexpr std::string_view kAny = R"(.*\.)";
      const size_t begin = is_whole ? 1 : pattern.starts_with(kAny) ? kAny.size() : 0;
      const std::optional<std::string> name = plain_name(std::string_view(pattern).substr(begin));
      if (!name) {
        config.fail(str("'", key, "' has the pattern '", shorten_text(pattern),
                        "', which is not a module's name nor the end of one from a dot on, like "
                        "'layers.0.self_attn.q_proj'; list by name what it matches"));
      }
      // Later ones of the same name are never met.
      (is_whole ? whole_ : ends_).try_emplace(*name, Entry{num_patterns_++, value(*values, pattern)});
    }
  }

  std::optional<double> find(std::string_view module) const {
    const Entry* first = nullptr;
    const auto look = [&](const Entries& entries, std::string_view name) {
      const auto found = entries.find(name);
      if (found == entries.end()) return;
      if (first == nullptr || found->second.order < first->order) first = &found->second;
    };
    look(whole_, module);
    look(ends_, module);
    for (size_t dot = module.find('.'); dot != module.npos; dot = module.find('.', dot + 1))
      look(ends_, module.substr(dot + 1));
    return first == nullptr ? std::nullopt : std::optional(first->value);
  }

 private:
  struct Entry {
    size_t order;
    double value;
  };
  using Entries = std::map<std::string, Entry, std::less<>>;

  // The one name that a pattern stands for. A dot stands for itself: no two modules differ in one.
  static std::optional<std::string> plain_name(std::string_view pattern) {
    std::string name;
    for (size_t i = 0; i < pattern.size(); ++i) {
      if (pattern[i] == '\\' && i + 1 < pattern.size() && pattern[i + 1] == '.') ++i;
      const char c = pattern[i];
      if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '_' && c != '-' && c != '.')
        return std::nullopt;
      if (c == '.' && (name.empty() || name.back() == '.')) return std::nullopt;
      name += c;
    }
    if (name.empty() || name.back() == '.') return std::nullopt;
    return name;
  }

  Entries whole_, ends_;
  size_t num_patterns_ = 0;
};

struct TensorName {
  std::string module;
  bool is_a;
  std::string adapter;  // empty: it has none
};

// The part behind the last dot, which is taken off with the dot.
std::string_view take_last_part(std::string_view& name) {
  const size_t dot = name.rfind('.');
  const std::string_view part = name.substr(dot == name.npos ? 0 : dot + 1);
  name = name.substr(0, dot == name.npos ? 0 : dot);
  return part;
}

std::optional<TensorName> parse_tensor_name(std::string_view name) {
  constexpr std::string_view kEnd = ".weight";
  if (!name.starts_with(kPrefix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  if (!name.ends_with(kEnd)) return std::nullopt;
  name.remove_suffix(kEnd.size());
  const auto is_matrix = [](std::string_view part) { return part == "lora_A" || part == "lora_B"; };
  std::string_view part = take_last_part(name), adapter;
  if (!is_matrix(part)) {
    adapter = part;
    part = take_last_part(name);
    if (!is_matrix(part) || adapter.empty()) return std::nullopt;
  }
  if (name.empty()) return std::nullopt;
  return TensorName{std::string(name), part == "lora_A", std::string(adapter)};
}

struct Pair {
  const TensorEntry* a = nullptr;
  const TensorEntry* b = nullptr;
};

// Of a tensor that is not of a pair: why it is refused, and what would do.
std::pair<const char*, const char*> reason_of_other(const std::string& name) {
  const auto has = [&](const char* part) { return name.find(part) != name.npos; };
  if (name.ends_with(".base_layer.weight")) {
    return {
        "is a copy of the model's own weights",
        "save the adapter with save_embedding_layers=False of peft's save_pretrained, or, if it changes that "
        "layer, merge it into its model with merge_and_unload"};
  }
  if (has("lora_embedding_A") || has("lora_embedding_B"))
    return {"is of an embedding's adapter, which is not supported", kMerge};
  if (has("lora_magnitude_vector")) return {"is of DoRA, which is not supported", kMerge};
  if (has("lora_B") && name.ends_with(".bias"))
    return {"is a bias in the adapter, which is not supported", kMerge};
  return {
      "is not a linear's adapter, which is called base_model.model.<module>.lora_A.weight or "
      "lora_B.weight",
      kMerge};
}

std::map<std::string, Pair> find_pairs(const std::vector<TensorEntry>& tensors, const std::string& path) {
  std::map<std::string, Pair> pairs;
  std::optional<std::string> adapter;
  for (const TensorEntry& tensor : tensors) {
    if (tensor.name.size() > kMaxNameBytes) {
      throw InvalidArgument(str(path, ": tensor '", shorten_text(tensor.name), "' has a name of ",
                                tensor.name.size(), " bytes; names have at most ", kMaxNameBytes));
    }
    const std::optional<TensorName> name = parse_tensor_name(tensor.name);
    if (!name) {
      const auto [reason, advice] = reason_of_other(tensor.name);
      throw InvalidArgument(str(path, ": tensor '", tensor.name, "' ", reason, "; ", advice));
    }
    if (adapter && *adapter != name->adapter) {
      throw InvalidArgument(str(path, ": holds tensors of two adapters, '", *adapter, "' and '",
                                name->adapter, "'; save each in a directory of its own"));
    }
    adapter = name->adapter;
    Pair& pair = pairs[name->module];
    (name->is_a ? pair.a : pair.b) = &tensor;
  }
  if (pairs.empty())
    throw InvalidArgument(
        str(path, ": holds no tensors; an adapter has at least one pair of lora_A and lora_B"));
  return pairs;
}

// Throws unless both are matrices whose ranks are one.
int32_t rank_of(const std::string& module, const Pair& pair, const std::string& path) {
  for (const bool is_a : {true, false}) {
    if ((is_a ? pair.a : pair.b) == nullptr) {
      throw InvalidArgument(str(path, ": module '", module, "' has ",
                                is_a ? "lora_B, but no lora_A" : "lora_A, but no lora_B",
                                "; both must be there"));
    }
  }
  for (const TensorEntry* tensor : {pair.a, pair.b}) {
    if (tensor->shape.size() != 2) {
      throw InvalidArgument(str(path, ": tensor '", tensor->name, "' has shape ", shape_text(tensor->shape),
                                "; a linear's adapter has two dimensions"));
    }
  }
  const int64_t rank = pair.a->shape[0];
  if (pair.b->shape[1] != rank) {
    throw InvalidArgument(
        str(path, ": module '", module, "' has lora_A of shape ", shape_text(pair.a->shape),
            " and lora_B of ", shape_text(pair.b->shape),
            "; the first size of one and the second of the other are the rank, and must be equal"));
  }
  if (rank > kMaxRank)
    throw InvalidArgument(str(path, ": module '", module, "' has rank ", rank, "; it is at most ", kMaxRank));
  for (const TensorEntry* tensor : {pair.a, pair.b}) {
    if (std::ranges::find(tensor->shape, 0) != tensor->shape.end()) {
      throw InvalidArgument(
          str(path, ": tensor '", tensor->name, "' has shape ", shape_text(tensor->shape),
              ", and no values; gather the parameters of a distributed training before it is saved"));
    }
  }
  return static_cast<int32_t>(rank);
}

// Throws unless both files are there.
void check_files(const std::string& directory, const fs::path& config, const fs::path& tensors) {
  std::error_code error;
  if (!fs::is_directory(directory, error)) {
    const bool was_followed =
        !error || error == std::errc::no_such_file_or_directory || error == std::errc::not_a_directory;
    const std::string why = !was_followed           ? error.message()
                            : is_present(directory) ? "is not a directory"
                                                    : "there is no such directory";
    throw InvalidArgument(
        str(directory, ": ", why,
            "; an adapter is one with adapter_config.json and adapter_model.safetensors, as peft saves it"));
  }
  if (!is_present(config.string()))
    throw InvalidArgument(
        str(directory, ": has no adapter_config.json, which peft saves beside adapter_model.safetensors"));
  if (is_present(tensors.string())) return;
  const bool is_pickled = is_present((fs::path(directory) / "adapter_model.bin").string());
  throw InvalidArgument(str(directory, ": has no adapter_model.safetensors",
                            is_pickled ? "; adapter_model.bin is a pickle, which may hold code: load it with "
                                         "peft, and save it again with safe_serialization=True"
                                       : ""));
}

constexpr int64_t kPieceBytes = 1 << 20;

void add_number(Sha256& hash, int64_t number) { hash.add(std::as_bytes(std::span(&number, 1))); }

void add_values(Sha256& hash, const Checkpoint& checkpoint, const TensorView& tensor) {
  for (int i = 0; i < tensor.rank; ++i) add_number(hash, tensor.shape[i]);
  hash.add_field(dtype_name(tensor.dtype));
  const auto value_bytes = static_cast<int64_t>(dtype_bytes(tensor.dtype));
  std::vector<std::byte> piece(static_cast<size_t>(std::min(kPieceBytes, tensor.numel() * value_bytes)));
  const std::byte* from = tensor.as<std::byte>();
  for (int64_t left = tensor.numel(); left > 0;) {
    const int64_t count = std::min(left, kPieceBytes / value_bytes);
    checkpoint.read(from, tensor.dtype, count, piece.data());
    hash.add(std::span(piece).first(static_cast<size_t>(count * value_bytes)));
    from += count * value_bytes;
    left -= count;
  }
}

std::string hash_text(const std::string& text) {
  std::string words;
  for (const uint32_t word : Sha256().add(text).finish()) words += std::to_string(word) + ' ';
  return words;
}

}  // namespace

std::string LoraAdapter::fingerprint(size_t num_threads) const {
  // Each module by itself, and then these.
  std::vector<Sha256State> hashes(modules_.size());
  for_each_on_threads(modules_.size(), num_threads, [&](size_t i) {
    const LoraAdapterModule& module = modules_[i];
    Sha256 hash;
    hash.add_field(module.name);
    hash.add(std::as_bytes(std::span(&module.scale, 1)));
    if (module.num_experts > 0) add_number(hash, module.num_experts);
    add_values(hash, checkpoint_, module.a);
    add_values(hash, checkpoint_, module.b);
    hashes[i] = hash.finish();
  });
  Sha256 hash;
  for (const Sha256State& module : hashes) hash.add(std::as_bytes(std::span(module)));
  std::string text;
  constexpr const char* kDigits = "0123456789abcdef";
  for (const uint32_t word : hash.finish())
    for (int shift = 28; shift >= 0; shift -= 4) text += kDigits[word >> shift & 15];
  return text;
}

LoraAdapter LoraAdapter::open(const std::string& directory) {
  const fs::path config_path = fs::path(directory) / "adapter_config.json";
  const fs::path path = fs::path(directory) / "adapter_model.safetensors";
  check_files(directory, config_path, path);
  const std::string text = read_text_file(config_path.string(), 16 << 20);
  const HfConfig config = HfConfig::parse(text, config_path.string());
  check_supported(config);
  check_begun_beside_the_model(config);
  const int32_t common_rank = config.get_int("r", 1, kMaxRank);
  const double common_alpha = config.get_positive("lora_alpha");
  const bool is_stabilized = config.get_bool("use_rslora", false);
  const JsonTree tree = parse_json_tree(text, config_path.string());
  const Patterns ranks(config, tree, "rank_pattern", [](const HfConfig& values, const std::string& pattern) {
    return values.get_int(pattern, 1, kMaxRank);
  });
  const Patterns alphas(
      config, tree, "alpha_pattern",
      [](const HfConfig& values, const std::string& pattern) { return values.get_positive(pattern); });

  // Adapters of one configuration have files of one size, and tools that copy them keep their times.
  const std::string changed = change_stamp(path.string());
  LoraAdapter adapter(Checkpoint::open_file(path.string()));
  adapter.base_model_ = config.get_string("base_model_name_or_path", "");
  adapter.stamp_ = adapter.checkpoint_.stamp() + changed + hash_text(text);
  const std::vector<TensorEntry> tensors = adapter.checkpoint_.described_tensors();
  const std::map<std::string, Pair> pairs = find_pairs(tensors, path.string());
  std::vector<std::string> names;
  for (const auto& [name, pair] : pairs) names.push_back(name);
  const auto parameters = LoraParameters(config).find(names, path.string());
  for (const auto& [name_in_file, pair] : pairs) {
    const auto parameter = parameters.find(name_in_file);
    const bool is_linear = parameter == parameters.end();
    const std::string& name = is_linear ? name_in_file : parameter->second.module;
    const std::string& pattern = is_linear ? name_in_file : parameter->second.pattern;
    LoraAdapterModule module;
    module.name = name;
    module.rank = rank_of(name, pair, path.string());
    const std::optional<double> own_rank = ranks.find(pattern);
    const int32_t wanted = own_rank ? static_cast<int32_t>(*own_rank) : common_rank;
    if (!is_linear && module.rank % wanted == 0) {
      module.num_experts = module.rank / wanted;
      module.rank = wanted;
    }
    if (module.rank != wanted) {
      throw InvalidArgument(str(path.string(), ": module '", name, "' has rank ", module.rank, ", but '",
                                own_rank ? "rank_pattern" : "r", "' of ", config_path.string(), " says ",
                                wanted, is_linear ? "" : " of each expert"));
    }
    const double alpha = alphas.find(pattern).value_or(common_alpha);
    module.scale = static_cast<float>(alpha / (is_stabilized ? std::sqrt(module.rank) : module.rank));
    if (!(module.scale > 0)) {
      config.fail(str("module '", name, "' of rank ", module.rank, " has an alpha of ", alpha,
                      ", which makes a scale that is 0 in 32 bits"));
    }
    module.a = adapter.checkpoint_.take(pair.a->name, {pair.a->shape[0], pair.a->shape[1]});
    module.b = adapter.checkpoint_.take(pair.b->name, {pair.b->shape[0], pair.b->shape[1]});
    adapter.max_rank_ = std::max(adapter.max_rank_, module.rank);
    adapter.modules_.push_back(std::move(module));
  }
  std::ranges::sort(adapter.modules_, {}, &LoraAdapterModule::name);
  const auto twice = std::ranges::adjacent_find(adapter.modules_, {}, &LoraAdapterModule::name);
  if (twice != adapter.modules_.end())
    throw InvalidArgument(str(path.string(), ": has '", twice->name, "' as a module and as a parameter"));
  return adapter;
}

}  // namespace quire
