#include "tokenizer/bpe_model.h"

#include <algorithm>
#include <bit>
#include <queue>
#include <utility>

#include "quire/error.h"
#include "tokenizer/byte_fallback.h"
#include "tokenizer/byte_level.h"
#include "tokenizer/word_models.h"
#include "util/str.h"
#include "util/utf8.h"

namespace quire::text {
namespace {

// Comparing all pairs each round costs n^2 / 2 look-ups at worst; beyond this a queue is faster.
constexpr size_t kMaxShortWord = 24;

size_t buckets_for(size_t num_merges) { return std::bit_ceil(std::max<size_t>(num_merges, 8) * 2); }

}  // namespace

MergeTable::MergeTable(size_t num_merges)
    : mask_(buckets_for(num_merges) - 1),
      shift_(64 - std::countr_zero(buckets_for(num_merges))),
      buckets_(buckets_for(num_merges)) {}

void MergeTable::set(int32_t left, int32_t right, Merge merge) {
  size_t i = bucket_of(key_of(left, right));
  while (buckets_[i].key != kEmpty && buckets_[i].key != key_of(left, right)) i = (i + 1) & mask_;
  buckets_[i] = {key_of(left, right), merge};
}

namespace {

void append_merge(const JsonNode& merges, size_t index, std::string_view left, std::string_view right,
                  BpeParts& parts) {
  const auto id_of = [&](std::string_view token) {
    const int32_t id = parts.vocab.find(token);
    if (id < 0) merges.fail(str("[", index, "] needs the token '", token, "', which is not in model.vocab"));
    return id;
  };
  const int32_t left_id = id_of(left), right_id = id_of(right);
  if (!right.starts_with(parts.prefix)) {
    merges.fail(str("[", index, "] has '", right, "', which does not begin with '", parts.prefix, "'"));
  }
  const std::string merged = std::string(left).append(right.substr(parts.prefix.size()));
  parts.merges.push_back({left_id, right_id, {static_cast<int32_t>(parts.merges.size()), id_of(merged)}});
}

// A merge is "left right" or ["left", "right"].
void read_merges(const JsonNode& merges, BpeParts& parts) {
  if (!merges.json().is_array()) merges.fail("must be an array");
  size_t index = 0;
  for (const Json& merge : merges.json()) {
    if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      append_merge(merges, index, merge[0].get_ref<const std::string&>(),
                   merge[1].get_ref<const std::string&>(), parts);
    } else if (merge.is_string()) {
      const std::string_view pair = merge.get_ref<const std::string&>();
      if (!pair.starts_with("#version")) {
        const size_t space = pair.find(' ');
        if (space == pair.npos || pair.find(' ', space + 1) != pair.npos) {
          merges.fail(
              str("[", index, "] is '", pair, "', which is not two tokens with a space between them"));
        }
        append_merge(merges, index, pair.substr(0, space), pair.substr(space + 1), parts);
      }
    } else {
      merges.fail(str("[", index, "] must be a string or a pair of strings"));
    }
    ++index;
  }
}

BpeParts read_parts(const JsonNode& section, bool takes_bytes) {
  section.allow_only({"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
                      "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"});
  if (const auto dropout = section.find("dropout"); dropout && dropout->json() != 0.0) {
    dropout->fail("is not supported: merges are applied without chance; set it to null");
  }
  BpeParts parts;
  parts.takes_bytes = takes_bytes;
  if (const auto prefix = section.find("continuing_subword_prefix")) parts.prefix = prefix->string();
  if (const auto suffix = section.find("end_of_word_suffix")) parts.suffix = suffix->string();
  parts.byte_fallback = section.boolean_or("byte_fallback", false);
  parts.fuse_unk = section.boolean_or("fuse_unk", false);
  parts.ignore_merges = section.boolean_or("ignore_merges", false);
  read_vocab(section.at("vocab"), parts.vocab);
  if (const auto unk = section.find("unk_token")) {
    parts.unk_id = parts.vocab.find(unk->string());
    if (parts.unk_id < 0) unk->fail(str("'", unk->string(), "' is not in model.vocab"));
  }
  read_merges(section.at("merges"), parts);
  return parts;
}

constexpr std::string_view kSpaceMark = "\u2581";

}  // namespace

BpeModel::BpeModel(const JsonNode& section, bool takes_bytes) : BpeModel(read_parts(section, takes_bytes)) {}

BpeModel::BpeModel(BpeParts parts) : parts_(std::move(parts)), merges_(parts_.merges.size()) {
  byte_ids_.fill(-1);
  if (parts_.takes_bytes) {
    for (int32_t id = 0; id < parts_.vocab.id_end(); ++id) {
      if (!parts_.vocab.contains(id)) continue;
      if (const auto bytes = from_byte_level(parts_.vocab.token(id))) by_bytes_.insert(*bytes, id);
    }
  }
  for (size_t b = 0; b < 256; ++b) {
    const char byte = static_cast<char>(b);
    if (parts_.takes_bytes) {
      byte_ids_[b] = by_bytes_.find({&byte, 1});
    } else if (parts_.byte_fallback) {
      byte_ids_[b] = parts_.vocab.find(byte_token(static_cast<uint8_t>(b)));
    }
  }
  for (const BpeParts::Merge& merge : parts_.merges) merges_.set(merge.left, merge.right, merge.merge);
  marks_cut_ = find_whether_marks_cut();
  parts_.merges = std::vector<BpeParts::Merge>();
}

bool BpeModel::find_whether_marks_cut() const {
  if (parts_.takes_bytes || !parts_.prefix.empty() || !parts_.suffix.empty()) return false;
  if (parts_.vocab.find(kSpaceMark) < 0) return false;
  return std::ranges::all_of(parts_.merges, [&](const BpeParts::Merge& merge) {
    const std::string_view token = parts_.vocab.token(merge.merge.id);
    size_t marks = 0;
    while (token.substr(marks).starts_with(kSpaceMark)) marks += kSpaceMark.size();
    return token.find(kSpaceMark, marks) == token.npos;
  });
}

std::optional<std::string_view> BpeModel::id_to_token(int32_t id) const {
  if (!parts_.vocab.contains(id)) return std::nullopt;
  return parts_.vocab.token(id);
}

void BpeModel::tokenize(std::string_view piece, EncodeScratch& scratch, std::vector<int32_t>& ids,
                        TokenPlaces* places) const {
  if (!marks_cut_ && places == nullptr) return tokenize_word(piece, scratch, ids);
  const auto tokenize_part = [&](size_t begin, size_t end) {
    const std::string_view word = piece.substr(begin, end - begin);
    const size_t first = ids.size();
    tokenize_word(word, scratch, ids);
    if (places != nullptr) locate(word, begin, std::span(ids).subspan(first), *places);
  };
  if (!marks_cut_) return tokenize_part(0, piece.size());
  if (parts_.ignore_merges) {
    if (const int32_t whole = parts_.vocab.find(piece); whole >= 0) {
      if (places != nullptr) places->push_back({0, piece.size()});
      return ids.push_back(whole);
    }
  }
  size_t begin = 0;
  for (size_t mark = piece.find(kSpaceMark); mark != piece.npos;) {
    if (mark > begin) {
      tokenize_part(begin, mark);
      begin = mark;
    }
    while (piece.substr(mark).starts_with(kSpaceMark)) mark += kSpaceMark.size();
    mark = piece.find(kSpaceMark, mark);
  }
  if (begin < piece.size()) tokenize_part(begin, piece.size());
}

int32_t BpeModel::find_whole(std::string_view word) const {
  if (!parts_.ignore_merges || marks_cut_) return -1;
  return parts_.takes_bytes ? by_bytes_.find(word) : parts_.vocab.find(word);
}

void BpeModel::tokenize_word(std::string_view word, EncodeScratch& scratch, std::vector<int32_t>& ids) const {
  const uint64_t hash = hash_bytes(word);
  if (const auto cached = scratch.cache.find(word, hash); !cached.empty()) {
    ids.insert(ids.end(), cached.begin(), cached.end());
    return;
  }
  const size_t begin = ids.size();
  merge_word(word, ids);
  scratch.cache.insert(word, hash, std::span(ids).subspan(begin));
}

void BpeModel::merge_word(std::string_view word, std::vector<int32_t>& ids) const {
  if (const int32_t whole = find_whole(word); whole >= 0) return ids.push_back(whole);
  const size_t begin = ids.size();
  split(word, [&](int32_t id, size_t, size_t) { ids.push_back(id); });
  if (ids.size() - begin <= kMaxShortWord) {
    merge_short(ids, begin);
  } else {
    merge_long(ids, begin, nullptr);
  }
}

void BpeModel::locate(std::string_view word, size_t begin, std::span<const int32_t> ids,
                      TokenPlaces& places) const {
  // Nearly always the tokens' texts, joined, are the word.
  const size_t first_place = places.size();
  size_t done = 0;
  for (const int32_t id : ids) {
    const std::string_view text = parts_.takes_bytes ? by_bytes_.token(id) : parts_.vocab.token(id);
    if (text.empty() || !word.substr(done).starts_with(text)) break;
    places.push_back({begin + done, begin + done + text.size()});
    done += text.size();
  }
  if (done == word.size() && places.size() - first_place == ids.size()) return;
  places.resize(first_place);
  // Otherwise there are tokens for bytes, affixes or what is unknown.
  if (find_whole(word) >= 0) return places.push_back({begin, begin + word.size()});
  std::vector<int32_t> symbols;
  TokenPlaces parts;
  split(word, [&](int32_t id, size_t part_begin, size_t part_end) {
    symbols.push_back(id);
    parts.push_back({begin + part_begin, begin + part_end});
  });
  const size_t num_parts = parts.size();
  std::vector<size_t> firsts;
  merge_long(symbols, 0, &firsts);
  for (size_t i = 0; i < firsts.size(); ++i) {
    const size_t next = i + 1 < firsts.size() ? firsts[i + 1] : num_parts;
    places.push_back({parts[firsts[i]].begin, parts[next - 1].end});
  }
}

template <typename Take>
void BpeModel::split(std::string_view word, const Take& take) const {
  if (parts_.takes_bytes) {
    split_to_bytes(word, take);
  } else {
    split_to_characters(word, take);
  }
}

template <typename Take>
void BpeModel::split_to_characters(std::string_view piece, const Take& take) const {
  // Byte tokens go ahead of what is unknown before them, as in `tokenizers`; all then stand for the stretch.
  bool held_unk = false;
  size_t unk_begin = 0, unk_end = 0;
  const auto take_unk = [&] {
    if (std::exchange(held_unk, false)) take(parts_.unk_id, unk_begin, unk_end);
  };
  std::string affixed;
  for (size_t begin = 0, end = 0; begin < piece.size(); begin = end) {
    decode_utf8(piece, end);
    std::string_view symbol = piece.substr(begin, end - begin);
    const bool has_prefix = begin > 0 && !parts_.prefix.empty();
    const bool has_suffix = end == piece.size() && !parts_.suffix.empty();
    if (has_prefix || has_suffix) {
      affixed.assign(has_prefix ? parts_.prefix : std::string()).append(symbol);
      if (has_suffix) affixed += parts_.suffix;
      symbol = affixed;
    }
    if (const int32_t id = parts_.vocab.find(symbol); id >= 0) {
      take_unk();
      take(id, begin, end);
    } else if (parts_.byte_fallback && has_byte_tokens(symbol)) {
      unk_end = end;
      for (const char byte : symbol)
        take(byte_ids_[static_cast<unsigned char>(byte)], held_unk ? unk_begin : begin, end);
    } else if (parts_.unk_id >= 0) {
      if (!parts_.fuse_unk) take_unk();
      if (!std::exchange(held_unk, true)) unk_begin = begin;
      unk_end = end;
    }
  }
  take_unk();
}

bool BpeModel::has_byte_tokens(std::string_view character) const {
  return std::ranges::all_of(character,
                             [&](char byte) { return byte_ids_[static_cast<unsigned char>(byte)] >= 0; });
}

template <typename Take>
void BpeModel::split_to_bytes(std::string_view piece, const Take& take) const {
  for (size_t begin = 0, end = 0; begin < piece.size(); begin = end) {
    const auto id_of = [&](size_t i) { return byte_ids_[static_cast<unsigned char>(piece[i])]; };
    const int32_t id = id_of(end++);
    if (id >= 0) {
      take(id, begin, end);
    } else if (parts_.unk_id >= 0) {
      while (parts_.fuse_unk && end < piece.size() && id_of(end) < 0) ++end;
      take(parts_.unk_id, begin, end);
    }
  }
}

void BpeModel::merge_short(std::vector<int32_t>& ids, size_t begin) const {
  size_t size = ids.size() - begin;
  int32_t* symbols = ids.data() + begin;
  MergeTable::Merge merges[kMaxShortWord];  // of each symbol with the next one
  constexpr int32_t kNoMerge = INT32_MAX;
  const auto merge_at = [&](size_t i) {
    const MergeTable::Merge* merge = i + 1 < size ? merges_.find(symbols[i], symbols[i + 1]) : nullptr;
    return merge ? *merge : MergeTable::Merge{kNoMerge, 0};
  };
  for (size_t i = 0; i < size; ++i) merges[i] = merge_at(i);
  while (size > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < size; ++i) {
      if (merges[i].rank < merges[best].rank) best = i;
    }
    if (merges[best].rank == kNoMerge) break;
    symbols[best] = merges[best].id;
    std::copy(symbols + best + 2, symbols + size, symbols + best + 1);
    std::copy(merges + best + 2, merges + size, merges + best + 1);
    --size;
    merges[best] = merge_at(best);
    if (best > 0) merges[best - 1] = merge_at(best - 1);
  }
  ids.resize(begin + size);
}

void BpeModel::merge_long(std::vector<int32_t>& ids, size_t begin, std::vector<size_t>* firsts) const {
  struct Symbol {
    int32_t id;  // -1 once it is part of the symbol before it
    int32_t previous;
    int32_t next;
  };
  struct Candidate {
    int32_t rank;
    int32_t position;
    int32_t id;
    bool operator<(const Candidate& other) const {  // the queue's top is the lowest rank, then the leftmost
      return rank != other.rank ? rank > other.rank : position > other.position;
    }
  };
  const auto size = static_cast<int32_t>(ids.size() - begin);
  std::vector<Symbol> symbols(static_cast<size_t>(size));
  for (int32_t i = 0; i < size; ++i) {
    symbols[static_cast<size_t>(i)] = {ids[begin + static_cast<size_t>(i)], i - 1, i + 1 < size ? i + 1 : -1};
  }
  std::vector<Candidate> found;
  const auto find_at = [&](int32_t position, auto&& take) {
    if (position < 0) return;
    const Symbol& symbol = symbols[static_cast<size_t>(position)];
    if (symbol.next < 0) return;
    const auto* merge = merges_.find(symbol.id, symbols[static_cast<size_t>(symbol.next)].id);
    if (merge) take(Candidate{merge->rank, position, merge->id});
  };
  for (int32_t i = 0; i < size; ++i)
    find_at(i, [&](const Candidate& candidate) { found.push_back(candidate); });
  std::priority_queue<Candidate> queue(std::less<Candidate>(), std::move(found));
  while (!queue.empty()) {
    const Candidate top = queue.top();
    queue.pop();
    Symbol& left = symbols[static_cast<size_t>(top.position)];
    if (left.id < 0 || left.next < 0) continue;
    // Either symbol may have grown since; then this candidate is void.
    Symbol& right = symbols[static_cast<size_t>(left.next)];
    const auto* merge = merges_.find(left.id, right.id);
    if (!merge || merge->id != top.id) continue;
    left.id = top.id;
    right.id = -1;
    left.next = right.next;
    if (left.next >= 0) symbols[static_cast<size_t>(left.next)].previous = top.position;
    const auto push = [&](const Candidate& candidate) { queue.push(candidate); };
    find_at(left.previous, push);
    find_at(top.position, push);
  }
  size_t end = begin;
  for (size_t i = 0; i < symbols.size(); ++i) {
    if (symbols[i].id < 0) continue;
    ids[end++] = symbols[i].id;
    if (firsts != nullptr) firsts->push_back(i);
  }
  ids.resize(end);
}

}  // namespace quire::text
