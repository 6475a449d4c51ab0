#include "tokenizer/gguf_tokenizer.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "quire/error.h"
#include "tokenizer/bpe_model.h"
#include "tokenizer/sentencepiece.h"
#include "tokenizer/split_patterns.h"
#include "tokenizer/unicode.h"
#include "util/str.h"

namespace quire::text {
namespace gguf {
namespace {

using Type = SentencePieceFile::Type;  // ggml has the same numbers

constexpr size_t kMaxTokens = size_t{1} << 22;
constexpr size_t kMaxTokenBytes = 4096;

const std::string& string_at(const GgufHeader& header, const char* key, size_t index) {
  const std::string& text = header.get_array<std::string>(key)[index];
  if (find_invalid_utf8(text) != std::string::npos)
    header.fail(str("'", key, "'[", index, "] is not valid UTF-8"));
  return text;
}

// An array beside the tokens: as long as theirs.
template <typename T>
const std::vector<T>* array_beside(const GgufHeader& header, const char* key, size_t size) {
  if (!header.has(key)) return nullptr;
  const std::vector<T>& values = header.get_array<T>(key);
  if (values.size() != size)
    header.fail(str("'", key, "' has ", values.size(), " elements, there are ", size, " tokens"));
  return &values;
}

std::vector<SentencePieceFile::Piece> read_pieces(const GgufHeader& header) {
  constexpr const char* kTokens = "tokenizer.ggml.tokens";
  const size_t size = header.get_array<std::string>(kTokens).size();
  if (size == 0 || size > kMaxTokens)
    header.fail(str("'", kTokens, "' has ", size, " elements; 1 to ", kMaxTokens, " are expected"));
  const auto* types = array_beside<int64_t>(header, "tokenizer.ggml.token_type", size);
  const auto* scores = array_beside<double>(header, "tokenizer.ggml.scores", size);
  std::vector<SentencePieceFile::Piece> pieces(size);
  for (size_t i = 0; i < size; ++i) {
    pieces[i].text = string_at(header, kTokens, i);
    if (pieces[i].text.size() > kMaxTokenBytes)
      header.fail(
          str("'", kTokens, "'[", i, "] has ", pieces[i].text.size(), " bytes; at most ", kMaxTokenBytes));
    if (types != nullptr) {
      const int64_t type = (*types)[i];
      if (type < 1 || type > 6)
        header.fail(str("'tokenizer.ggml.token_type'[", i, "] is ", type, "; 1 to 6 are expected"));
      pieces[i].type = static_cast<Type>(type);
    }
    if (scores != nullptr) {
      if (!std::isfinite((*scores)[i]))
        header.fail(
            str("'tokenizer.ggml.scores'[", i, "] is ", (*scores)[i], "; a finite float is expected"));
      pieces[i].score = static_cast<float>((*scores)[i]);
    }
  }
  return pieces;
}

// What a text begins and ends with.
Json post_processor(const GgufHeader& header, const std::vector<SentencePieceFile::Piece>& pieces,
                    bool adds_bos) {
  Json single = Json::array();
  Json tokens = Json::object();
  const auto add = [&](const char* key) {
    const auto id = header.get_int(key, 0, static_cast<int64_t>(pieces.size()) - 1);
    const std::string& text = pieces[static_cast<size_t>(id)].text;
    single.push_back({{"SpecialToken", {{"id", text}, {"type_id", 0}}}});
    tokens[text] = {{"id", text}, {"ids", Json::array({id})}, {"tokens", Json::array({text})}};
  };
  if (header.get_bool("tokenizer.ggml.add_bos_token", adds_bos)) add("tokenizer.ggml.bos_token_id");
  single.push_back({{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
  if (header.get_bool("tokenizer.ggml.add_eos_token", false)) add("tokenizer.ggml.eos_token_id");
  return {
      {"type", "TemplateProcessing"}, {"single", std::move(single)}, {"special_tokens", std::move(tokens)}};
}

struct Split {
  std::vector<std::string> patterns;
  bool ignore_merges = false;
  bool adds_bos = false;
  bool nfc = false;
};

Split split_of(const GgufHeader& header) {
  constexpr const char* kKey = "tokenizer.ggml.pre";
  static const std::vector<std::pair<const char*, Split>> kKnown = {
      {"gpt-2", {{kGpt2Pattern}}},
      {"llama-bpe", {{kCl100kPattern}, true, true}},
      {"llama3", {{kCl100kPattern}, true, true}},
      {"llama-v3", {{kCl100kPattern}, true, true}},
      {"qwen2", {{kQwenPattern}, false, false, true}},
      {"deepseek-r1-qwen", {{kQwenPattern}, false, false, true}},
      {"tekken", {{kTekkenPattern}, true, true}},
      {"smollm", {{R"(\p{N})", kGpt2Pattern}}},
  };
  const std::string pre = header.has(kKey) ? header.get_string(kKey) : "";
  std::string names;
  for (const auto& [name, split] : kKnown) {
    if (pre == name) return split;
    names += str(names.empty() ? "" : ", ", name);
  }
  header.fail(str("'", kKey, "' is '", pre, "', which is not read; read are ", names));
}

Json added_tokens_of(const std::vector<SentencePieceFile::Piece>& pieces) {
  Json added = Json::array();
  for (size_t i = 0; i < pieces.size(); ++i) {
    const auto& [text, score, type] = pieces[i];
    if (type == Type::kControl || type == Type::kUnknown || type == Type::kUserDefined)
      added.push_back(added_token(static_cast<int64_t>(i), text, type != Type::kUserDefined));
  }
  return added;
}

std::shared_ptr<const Tokenizer> read_byte_level(const GgufHeader& header) {
  constexpr const char* kMerges = "tokenizer.ggml.merges";
  const std::vector<SentencePieceFile::Piece> pieces = read_pieces(header);
  const Split split = split_of(header);
  BpeParts parts;
  parts.takes_bytes = true;
  parts.ignore_merges = split.ignore_merges;
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (pieces[i].type == Type::kUnused) continue;  // fills the model's rows up
    if (!parts.vocab.insert(pieces[i].text, static_cast<int32_t>(i)))
      header.fail(str("'tokenizer.ggml.tokens'[", i, "] is '", pieces[i].text, "' a second time"));
  }
  const size_t num_merges = header.get_array<std::string>(kMerges).size();
  for (size_t rank = 0; rank < num_merges; ++rank) {
    const std::string_view merge = string_at(header, kMerges, rank);
    const size_t space = merge.find(' ', 1);
    const bool is_pair = space != merge.npos && merge.find(' ', space + 1) == merge.npos;
    const int32_t left = is_pair ? parts.vocab.find(merge.substr(0, space)) : -1;
    const int32_t right = is_pair ? parts.vocab.find(merge.substr(space + 1)) : -1;
    const int32_t merged =
        is_pair ? parts.vocab.find(str(merge.substr(0, space), merge.substr(space + 1))) : -1;
    if (left < 0 || right < 0 || merged < 0)
      header.fail(str("'", kMerges, "'[", rank, "] is '", merge, "'; two tokens with a space between them, ",
                      "which are a token together, are expected"));
    parts.merges.push_back({left, right, {static_cast<int32_t>(rank), merged}});
  }
  Json document = byte_level_document(split.patterns, added_tokens_of(pieces));
  if (split.nfc) document["normalizer"] = {{"type", "NFC"}};
  document["post_processor"] = post_processor(header, pieces, split.adds_bos);
  return std::make_shared<HfTokenizer>(
      TokenizerParts{std::move(document), std::make_unique<BpeModel>(std::move(parts)), nullptr},
      header.path);
}

std::shared_ptr<const Tokenizer> read_sentencepiece_bpe(const GgufHeader& header) {
  SentencePieceFile parsed;
  parsed.pieces = read_pieces(header);
  parsed.is_bpe = true;
  parsed.add_dummy_prefix = header.get_bool("tokenizer.ggml.add_space_prefix", true);
  parsed.remove_extra_whitespaces = header.get_bool("tokenizer.ggml.remove_extra_whitespaces", false);
  parsed.byte_fallback = parsed.find(Type::kByte) >= 0;
  Json document = make_sections(parsed, false, false);
  document["post_processor"] = post_processor(header, parsed.pieces, true);
  return std::make_shared<HfTokenizer>(TokenizerParts{std::move(document), make_model(parsed, header.path),
                                                      make_pre_tokenizer(parsed, header.path)},
                                       header.path);
}

}  // namespace
}  // namespace gguf

std::shared_ptr<const Tokenizer> read_gguf_tokenizer(const GgufHeader& header) {
  constexpr const char* kKey = "tokenizer.ggml.model";
  const std::string& model = header.get_string(kKey);
  if (model == "gpt2") return gguf::read_byte_level(header);
  if (model == "llama") return gguf::read_sentencepiece_bpe(header);
  header.fail(str("'", kKey, "' is '", model, "', which is not read; read are gpt2 and llama"));
}

}  // namespace quire::text
