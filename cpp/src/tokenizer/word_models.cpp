#include "tokenizer/word_models.h"

#include <algorithm>

#include "quire/error.h"
#include "util/str.h"
#include "util/utf8.h"

namespace quire::text {
namespace {

constexpr int64_t kMaxId = 1 << 22;  // each takes memory, named or not

// Without the token that stands for them, unknown words cannot be encoded.
int32_t append_unk(int32_t unk_id, const std::string& unk_token, std::string_view word) {
  if (unk_id < 0) {
    throw InvalidArgument(str("text has '", word.substr(0, 100),
                              "', which no token of the vocabulary begins; ", "model.unk_token '", unk_token,
                              "' is not in model.vocab"));
  }
  return unk_id;
}

std::optional<std::string_view> find_token(const TokenTable& vocab, int32_t id) {
  if (!vocab.contains(id)) return std::nullopt;
  return vocab.token(id);
}

}  // namespace

void read_vocab(const JsonNode& vocab, TokenTable& table) {
  for (const auto& [token, value] : vocab.object().items()) {
    const bool valid = value.is_number_unsigned() && value.get<uint64_t>() < uint64_t{kMaxId};
    if (!valid)
      vocab.fail(str("gives '", token, "' the id ", value.dump(), "; ids are integers from 0 to ", kMaxId));
    const int32_t id = value.get<int32_t>();
    if (!table.insert(token, id)) {
      vocab.fail(str("gives the id ", id, " to both '", token, "' and '", table.token(id), "'"));
    }
  }
}

WordPieceModel::WordPieceModel(const JsonNode& section)
    : unk_token_(section.at("unk_token").string()),
      prefix_(section.at("continuing_subword_prefix").string()),
      max_characters_(static_cast<size_t>(section.at("max_input_chars_per_word").integer(0, INT32_MAX))) {
  section.allow_only({"type", "unk_token", "continuing_subword_prefix", "max_input_chars_per_word", "vocab"});
  read_vocab(section.at("vocab"), vocab_);
  unk_id_ = vocab_.find(unk_token_);
  for (int32_t id = 0; id < vocab_.id_end(); ++id)
    max_token_bytes_ = std::max(max_token_bytes_, vocab_.token(id).size());
}

void WordPieceModel::tokenize(std::string_view word, EncodeScratch& scratch, std::vector<int32_t>& ids,
                              TokenPlaces* places) const {
  const uint64_t hash = hash_bytes(word);
  // Where tokens lie, the cache does not know.
  if (const auto cached = scratch.cache.find(word, hash); places == nullptr && !cached.empty()) {
    ids.insert(ids.end(), cached.begin(), cached.end());
    return;
  }
  const auto is_lead = [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; };
  const size_t begin = ids.size();
  const size_t begin_places = places != nullptr ? places->size() : 0;
  if (static_cast<size_t>(std::ranges::count_if(word, is_lead)) > max_characters_ ||
      !append_pieces(word, ids, places)) {
    ids.resize(begin);
    ids.push_back(append_unk(unk_id_, unk_token_, word));
    if (places != nullptr) {
      places->resize(begin_places);
      places->push_back({0, word.size()});
    }
  }
  scratch.cache.insert(word, hash, std::span(ids).subspan(begin));
}

bool WordPieceModel::append_pieces(std::string_view word, std::vector<int32_t>& ids,
                                   TokenPlaces* places) const {
  std::string piece;
  for (size_t begin = 0; begin < word.size();) {
    piece.assign(begin > 0 ? prefix_ : std::string());
    const size_t affix = piece.size();
    // No token is longer; what is cut off so may end within a character, and is then no token.
    piece += word.substr(begin, max_token_bytes_);
    int32_t id = vocab_.find(piece);
    while (id < 0 && piece.size() > affix) {
      piece.resize(previous_utf8(piece, piece.size()));
      if (piece.size() > affix) id = vocab_.find(piece);
    }
    if (id < 0) return false;
    ids.push_back(id);
    const size_t end = begin + piece.size() - affix;
    if (places != nullptr) places->push_back({begin, end});
    begin = end;
  }
  return true;
}

std::optional<std::string_view> WordPieceModel::id_to_token(int32_t id) const {
  return find_token(vocab_, id);
}

WordLevelModel::WordLevelModel(const JsonNode& section) : unk_token_(section.at("unk_token").string()) {
  section.allow_only({"type", "vocab", "unk_token"});
  read_vocab(section.at("vocab"), vocab_);
  unk_id_ = vocab_.find(unk_token_);
}

void WordLevelModel::tokenize(std::string_view word, EncodeScratch&, std::vector<int32_t>& ids,
                              TokenPlaces* places) const {
  const int32_t id = vocab_.find(word);
  ids.push_back(id >= 0 ? id : append_unk(unk_id_, unk_token_, word));
  if (places != nullptr) places->push_back({0, word.size()});
}

std::optional<std::string_view> WordLevelModel::id_to_token(int32_t id) const {
  return find_token(vocab_, id);
}

}  // namespace quire::text
