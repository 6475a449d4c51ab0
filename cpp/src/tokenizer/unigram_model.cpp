#include "tokenizer/unigram_model.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "quire/error.h"
#include "tokenizer/byte_fallback.h"
#include "util/str.h"
#include "util/utf8.h"

namespace quire::text {
namespace {

// How much worse than the worst token it is to take a character for unknown.
constexpr double kUnkPenalty = 10.0;

// A score as `tokenizers` reads it: its JSON parser divides the digits by a power of ten, which is off by a
// bit here and there, and such bits decide between ways to cut that are equally good.
double as_read_by_tokenizers(double score) {
  char text[64];
  const auto [end, error] =
      std::to_chars(text, text + sizeof(text), std::abs(score), std::chars_format::fixed);
  if (error != std::errc()) return score;
  uint64_t digits = 0;
  int decimals = -1;
  for (const char* c = text; c < end; ++c) {
    if (*c == '.') {
      decimals = 0;
      continue;
    }
    if (digits > (UINT64_MAX - 9) / 10) return score;  // no score that training gives
    digits = digits * 10 + static_cast<uint64_t>(*c - '0');
    if (decimals >= 0) ++decimals;
  }
  const double value = static_cast<double>(digits) / std::pow(10.0, std::max(decimals, 0));
  return score < 0 ? -value : value;
}

UnigramParts read_parts(const JsonNode& section) {
  section.allow_only({"type", "unk_id", "vocab", "byte_fallback"});
  UnigramParts parts;
  const JsonNode vocab = section.at("vocab");
  if (!vocab.json().is_array()) vocab.fail("must be an array");
  for (const Json& entry : vocab.json()) {
    const bool valid = entry.is_array() && entry.size() == 2 && entry[0].is_string() && entry[1].is_number();
    if (!valid) vocab.fail(str("[", parts.vocab.size(), "] must be a pair of a string and a number"));
    parts.vocab.push_back({entry[0].get<std::string>(), as_read_by_tokenizers(entry[1].get<double>())});
  }
  if (parts.vocab.size() > size_t{1} << 24)
    vocab.fail(str("has ", parts.vocab.size(), " tokens; at most ", 1 << 24, " are supported"));
  parts.byte_fallback = section.boolean_or("byte_fallback", false);
  if (const auto unk = section.find("unk_id")) {
    if (parts.vocab.empty()) unk->fail("is no token of model.vocab, which is empty");
    parts.unk_id = static_cast<int32_t>(unk->integer(0, std::ssize(parts.vocab) - 1));
  }
  return parts;
}

}  // namespace

UnigramModel::UnigramModel(const JsonNode& section) try : UnigramModel(read_parts(section)) {
} catch (const std::domain_error& error) {
  section.at("vocab").fail(error.what());
}

UnigramModel::UnigramModel(const UnigramParts& parts)
    : unk_id_(parts.unk_id), byte_fallback_(parts.byte_fallback), is_sentencepiece_(parts.is_sentencepiece) {
  double lowest = std::numeric_limits<double>::infinity();
  std::vector<PrefixTrie::Entry> entries;
  for (size_t i = 0; i < parts.vocab.size(); ++i) {
    const auto& [token, score] = parts.vocab[i];
    const auto id = static_cast<int32_t>(i);
    if (!vocab_.insert(token, id)) throw std::domain_error(str("[", i, "] is '", token, "' a second time"));
    if (!std::isfinite(score)) throw std::domain_error(str("[", i, "] has the score ", score));
    scores_.push_back(score);
    if (!parts.unused.empty() && parts.unused[i]) continue;
    lowest = std::min(lowest, score);
    if (!token.empty()) entries.push_back({vocab_.token(id).size(), id});
  }
  unk_score_ = rounded(lowest - kUnkPenalty);
  trie_ = PrefixTrie(vocab_, entries);
  byte_ids_.fill(-1);
  for (size_t b = 0; byte_fallback_ && b < 256; ++b)
    byte_ids_[b] = vocab_.find(byte_token(static_cast<uint8_t>(b)));
}

std::optional<std::string_view> UnigramModel::id_to_token(int32_t id) const {
  if (!vocab_.contains(id)) return std::nullopt;
  return vocab_.token(id);
}

void UnigramModel::tokenize(std::string_view piece, EncodeScratch& scratch, std::vector<int32_t>& ids,
                            TokenPlaces* places) const {
  const uint64_t hash = hash_bytes(piece);
  // Where tokens lie, the cache does not know.
  if (const auto cached = scratch.cache.find(piece, hash); places == nullptr && !cached.empty()) {
    ids.insert(ids.end(), cached.begin(), cached.end());
    return;
  }
  std::vector<UnigramNode>& lattice = scratch.lattice;
  find_best_way(piece, lattice);
  const size_t first = ids.size();
  const size_t first_place = places != nullptr ? places->size() : 0;
  for (size_t end = piece.size(); end > 0;) {
    size_t begin = lattice[end].begin;
    if (lattice[end].id != unk_id_) {
      ids.push_back(lattice[end].id);
      if (places != nullptr) places->push_back({begin, end});
    } else {
      // What is unknown side by side is unknown as one.
      while (begin > 0 && lattice[begin].id == unk_id_) begin = lattice[begin].begin;
      append_unknown_reversed(piece, {begin, end}, ids, places);
    }
    end = begin;
  }
  std::reverse(ids.begin() + static_cast<ptrdiff_t>(first), ids.end());
  if (places != nullptr) std::reverse(places->begin() + static_cast<ptrdiff_t>(first_place), places->end());
  scratch.cache.insert(piece, hash, std::span(ids).subspan(first));
}

void UnigramModel::find_best_way(std::string_view piece, std::vector<UnigramNode>& lattice) const {
  if (piece.size() >= UnigramNode::kUnreached) throw InvalidArgument("text must be below 4 GiB");
  lattice.assign(piece.size() + 1, {0, -1, UnigramNode::kUnreached});
  const auto offer = [&](size_t begin, size_t end, int32_t id, double sum) {
    const double score = rounded(sum);
    UnigramNode& node = lattice[end];
    if (node.begin == UnigramNode::kUnreached || score > node.score)
      node = {score, id, static_cast<uint32_t>(begin)};
  };
  for (size_t begin = 0, next = 0; begin < piece.size(); begin = next) {
    decode_utf8(piece, next);
    const double so_far = lattice[begin].score;
    bool has_character = false;
    trie_.for_each_prefix(piece.substr(begin), [&](size_t length, int32_t id) {
      offer(begin, begin + length, id, scores_[static_cast<size_t>(id)] + so_far);
      has_character |= begin + length == next;
    });
    if (has_character) continue;
    if (unk_id_ < 0) {
      throw InvalidArgument(str("text has '", piece.substr(begin, next - begin),
                                "', which no token covers, and model.unk_id is null"));
    }
    offer(begin, next, unk_id_, unk_score_ + so_far);
  }
}

void UnigramModel::append_unknown_reversed(std::string_view piece, PreTokenized::Piece place,
                                           std::vector<int32_t>& ids, TokenPlaces* places) const {
  const auto push = [&](int32_t id, size_t begin, size_t end) {
    ids.push_back(id);
    if (places != nullptr) places->push_back({begin, end});
  };
  const std::string_view stretch = piece.substr(place.begin, place.end - place.begin);
  // Characters that are unknown each may be a token together.
  if (const int32_t whole = is_sentencepiece_ ? -1 : vocab_.find(stretch); whole >= 0)
    return push(whole, place.begin, place.end);
  const auto id_of = [&](char byte) { return byte_ids_[static_cast<unsigned char>(byte)]; };
  if (!byte_fallback_ || std::ranges::any_of(stretch, [&](char byte) { return id_of(byte) < 0; }))
    return push(unk_id_, place.begin, place.end);
  for (size_t i = place.end; i-- > place.begin;) {
    // To `tokenizers` each byte stands for the whole stretch.
    if (is_sentencepiece_) {
      push(id_of(piece[i]), i, i + 1);
    } else {
      push(id_of(piece[i]), place.begin, place.end);
    }
  }
}

}  // namespace quire::text
