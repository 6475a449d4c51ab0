#include "formats/gguf_weights.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <optional>

#include "formats/gguf_config.h"
#include "quire/error.h"
#include "util/check.h"
#include "util/str.h"

namespace quire {
namespace gguf {
namespace {

using NamePair = std::pair<std::string_view, std::string_view>;

constexpr std::array<NamePair, 3> kModelNames = {
    {{"token_embd", "model.embed_tokens"}, {"output_norm", "model.norm"}, {"output", "lm_head"}}};
constexpr std::array<NamePair, 9> kLayerNames = {{{"attn_norm", "input_layernorm"},
                                                  {"attn_q", "self_attn.q_proj"},
                                                  {"attn_k", "self_attn.k_proj"},
                                                  {"attn_v", "self_attn.v_proj"},
                                                  {"attn_output", "self_attn.o_proj"},
                                                  {"attn_q_norm", "self_attn.q_norm"},
                                                  {"attn_k_norm", "self_attn.k_norm"},
                                                  {"ffn_gate", "mlp.gate_proj"},
                                                  {"ffn_up", "mlp.up_proj"}}};
constexpr std::array<NamePair, 2> kPreNormNames = {
    {{"ffn_down", "mlp.down_proj"}, {"ffn_norm", "post_attention_layernorm"}}};
constexpr std::array<NamePair, 4> kGemma2Names = {{{"ffn_down", "mlp.down_proj"},
                                                   {"ffn_norm", "pre_feedforward_layernorm"},
                                                   {"post_attention_norm", "post_attention_layernorm"},
                                                   {"post_ffw_norm", "post_feedforward_layernorm"}}};

std::optional<std::string_view> find_name(std::span<const NamePair> names, std::string_view name) {
  const auto found = std::ranges::find(names, name, &NamePair::first);
  if (found == names.end()) return std::nullopt;
  return found->second;
}

// A name that is not known stays: the model then has no place for it, and says so.
std::string hf_name(std::string_view name, bool is_gemma2) {
  const size_t dot = name.rfind('.');
  if (dot == name.npos) return std::string(name);
  const std::string_view stem = name.substr(0, dot);
  const std::string_view ending = name.substr(dot);
  if (const auto known = find_name(kModelNames, stem)) return str(*known, ending);
  const size_t layer_end = stem.find('.', 4);
  if (!stem.starts_with("blk.") || layer_end == stem.npos) return std::string(name);
  const std::string_view part = stem.substr(layer_end + 1);
  auto known = find_name(kLayerNames, part);
  if (!known) known = is_gemma2 ? find_name(kGemma2Names, part) : find_name(kPreNormNames, part);
  if (!known) return std::string(name);
  return str("model.layers.", stem.substr(4, layer_end - 4), '.', *known, ending);
}

void check_count(const GgufHeader& first, size_t num_parts) {
  constexpr const char* kKey = "split.count";
  const int64_t count = first.has(kKey) ? first.get_int(kKey, 0, 99999) : 0;
  if (count > 1 && static_cast<size_t>(count) != num_parts)
    first.fail(str("'", kKey, "' is ", count, ", of which the file's name gives ", num_parts,
                   "; the first of three parts is named x-00001-of-00003.gguf"));
}

std::string value_dtype(GgmlType type) {
  return type == GgmlType::kF16 ? "F16" : type == GgmlType::kBF16 ? "BF16" : "F32";
}

}  // namespace
}  // namespace gguf

GgufWeights::GgufWeights(std::unique_ptr<const GgufFile> file, const Layout& layout)
    : file_(std::move(file)) {
  const bool is_gemma2 = layout.architecture == "gemma2";
  for (const GgufTensor& tensor : file_->header().tensors) {
    if (tensor.name == "rope_freqs.weight") continue;  // is in the config
    TensorEntry entry;
    entry.name = gguf::hf_name(tensor.name, is_gemma2);
    entry.dtype = gguf::value_dtype(tensor.type);
    entry.shape = tensor.shape;
    entry.begin = entries_.empty() ? 0 : entries_.back().end;
    uint64_t bytes = entry.dtype == "F32" ? 4 : 2;
    for (const int64_t size : tensor.shape) bytes *= static_cast<uint64_t>(size);  // counted by the reader
    if (__builtin_add_overflow(entry.begin, bytes, &entry.end) || entry.end > uint64_t{1} << 46)
      file_->header().fail(str("tensor '", tensor.name, "' is too large"));
    Source source{&tensor};
    const bool is_q = entry.name.find(".self_attn.q_proj.") != entry.name.npos;
    const bool is_k = entry.name.find(".self_attn.k_proj.") != entry.name.npos;
    if (layout.architecture == "llama" && (is_q || is_k)) {
      source.num_heads = is_q ? layout.num_heads : layout.num_kv_heads;
      const int64_t rows = tensor.shape[0];
      if (rows % (2 * source.num_heads) != 0)
        file_->header().fail(str("tensor '", tensor.name, "' has ", rows, " rows; ", source.num_heads,
                                 " heads of an even size are expected"));
    }
    source.holds_one_more = is_gemma2 && entry.name.ends_with("norm.weight");
    if (source.holds_one_more && tensor.type != GgmlType::kF32)
      file_->header().fail(str("tensor '", tensor.name, "' is ", ggml_type_info(tensor.type).name,
                               "; norms are expected as F32"));
    entries_.push_back(std::move(entry));
    sources_.push_back(source);
  }
  if (!entries_.empty()) addresses_ = ReservedAddresses(static_cast<size_t>(entries_.back().end), path());
}

std::string GgufWeights::compute_dtype(const TensorEntry& entry) const {
  const Source& source = sources_[static_cast<size_t>(&entry - entries_.data())];
  return ggml_type_info(source.tensor->type).block_values > 1 ? "BF16" : entry.dtype;
}

void GgufWeights::read(const std::byte* from, std::span<std::byte> out) const {
  const auto position = static_cast<uint64_t>(from - addresses_.begin());
  const auto entry = std::ranges::upper_bound(entries_, position, {}, &TensorEntry::end);
  QUIRE_CHECK(entry != entries_.end() && position + out.size() <= entry->end, "values of two tensors");
  const Source& source = sources_[static_cast<size_t>(entry - entries_.begin())];
  const size_t size = entry->dtype == "F32" ? 4 : 2;
  QUIRE_CHECK((position - entry->begin) % size == 0 && out.size() % size == 0, "a part of a value");
  auto first = static_cast<int64_t>((position - entry->begin) / size);
  auto count = static_cast<int64_t>(out.size() / size);
  if (source.num_heads == 0) {
    read_values(*source.tensor, first, count, out.data());
  } else {
    // The converter has put the two halves of each head's rows between each other.
    const int64_t columns = entry->shape.size() == 1 ? 1 : entry->shape[1];
    const int64_t half = entry->shape[0] / source.num_heads / 2;
    for (std::byte* to = out.data(); count > 0;) {
      const int64_t row = first / columns;
      const int64_t place = row % (2 * half);
      const int64_t stored = row - place + place % half * 2 + place / half;
      const int64_t n = std::min(count, columns - first % columns);
      read_values(*source.tensor, stored * columns + first % columns, n, to);
      to += static_cast<size_t>(n) * size;
      first += n;
      count -= n;
    }
  }
  if (!source.holds_one_more) return;
  for (size_t i = 0; i < out.size(); i += sizeof(float)) {
    float value;
    std::memcpy(&value, out.data() + i, sizeof(value));
    value -= 1.0F;
    std::memcpy(out.data() + i, &value, sizeof(value));
  }
}

void GgufWeights::read_values(const GgufTensor& tensor, int64_t first, int64_t count, std::byte* out) const {
  const GgmlTypeInfo& info = ggml_type_info(tensor.type);
  const auto position_of = [&](int64_t block) {
    return tensor.position + static_cast<uint64_t>(block * info.block_bytes);
  };
  if (info.block_values == 1) {
    file_->read_at(position_of(first), {out, static_cast<size_t>(count * info.block_bytes)});
    return;
  }
  constexpr int64_t kValuesAtOnce = 8192;                 // in the first caches
  std::array<std::byte, kValuesAtOnce / 32 * 34> blocks;  // of the largest, Q8_0's
  std::array<float, kValuesAtOnce> values;
  while (count > 0) {
    const int64_t block = first / info.block_values;
    const int64_t skipped = first % info.block_values;
    const int64_t wanted = (skipped + count + info.block_values - 1) / info.block_values;
    const int64_t num_blocks = std::min(wanted, kValuesAtOnce / info.block_values);
    file_->read_at(position_of(block),
                   std::span(blocks).first(static_cast<size_t>(num_blocks * info.block_bytes)));
    dequantize_blocks(tensor.type, blocks.data(), num_blocks, values.data());
    const int64_t n = std::min(count, num_blocks * info.block_values - skipped);
    std::memcpy(out, values.data() + skipped, static_cast<size_t>(n) * sizeof(float));
    out += static_cast<size_t>(n) * sizeof(float);
    first += n;
    count -= n;
  }
}

std::vector<std::shared_ptr<const TensorFile>> open_gguf_weights(const std::string& path) {
  std::vector<std::shared_ptr<const TensorFile>> files;
  GgufWeights::Layout layout;
  const std::vector<std::string> parts = gguf_parts(path);
  for (const std::string& part : parts) {
    auto file = std::make_unique<const GgufFile>(part);
    if (files.empty()) {
      layout = gguf_layout(file->header());
      gguf::check_count(file->header(), parts.size());
    }
    files.push_back(std::make_shared<const GgufWeights>(std::move(file), layout));
  }
  return files;
}

}  // namespace quire
