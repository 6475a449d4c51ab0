#include "tokenizer/bpe_model.h"

#include <algorithm>
#include <bit>
#include <queue>

#include "quire/error.h"
#include "tokenizer/byte_level.h"
#include "util/str.h"

namespace quire::text {
namespace {

// Comparing all pairs each round costs n^2 / 2 look-ups at worst; beyond this a queue is faster.
constexpr size_t kMaxShortWord = 24;
constexpr int64_t kMaxId = 1 << 24;

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

BpeModel::BpeModel(const JsonNode& section) : merges_(section.at("merges").json().size()) {
  section.allow_only({"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
                      "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"});
  if (const auto dropout = section.find("dropout"); dropout && dropout->json() != 0.0) {
    dropout->fail("is not supported: merges are applied without chance; set it to null");
  }
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (const auto affix = section.find(key); affix && !affix->string().empty()) {
      affix->fail("is not supported for byte-level BPE; set it to null");
    }
  }
  if (section.boolean_or("byte_fallback", false)) {
    section.at("byte_fallback").fail("is true, which is not supported for byte-level BPE");
  }
  fuse_unk_ = section.boolean_or("fuse_unk", false);
  ignore_merges_ = section.boolean_or("ignore_merges", false);

  read_vocab(section.at("vocab"));
  for (size_t b = 0; b < 256; ++b) {
    const char byte = static_cast<char>(b);
    byte_ids_[b] = by_bytes_.find({&byte, 1});
  }
  if (const auto unk = section.find("unk_token")) {
    unk_id_ = vocab_.find(unk->string());
    if (unk_id_ < 0) unk->fail(str("'", unk->string(), "' is not in model.vocab"));
  }
  read_merges(section.at("merges"));
}

void BpeModel::read_vocab(const JsonNode& vocab) {
  for (const auto& [token, value] : vocab.object().items()) {
    const bool valid = value.is_number_unsigned() && value.get<uint64_t>() < uint64_t{kMaxId};
    if (!valid)
      vocab.fail(str("gives '", token, "' the id ", value.dump(), "; ids are integers from 0 to ", kMaxId));
    const int32_t id = value.get<int32_t>();
    if (!vocab_.insert(token, id)) {
      vocab.fail(str("gives the id ", id, " to both '", token, "' and '", vocab_.token(id), "'"));
    }
    if (const auto bytes = from_byte_level(token)) by_bytes_.insert(*bytes, id);
  }
}

// A merge is "left right" or ["left", "right"].
void BpeModel::read_merges(const JsonNode& merges) {
  if (!merges.json().is_array()) merges.fail("must be an array");
  size_t index = 0;
  for (const Json& merge : merges.json()) {
    if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      append_merge(merges, index, merge[0].get_ref<const std::string&>(),
                   merge[1].get_ref<const std::string&>());
    } else if (merge.is_string()) {
      const std::string_view pair = merge.get_ref<const std::string&>();
      if (!pair.starts_with("#version")) {
        const size_t space = pair.find(' ');
        if (space == pair.npos || pair.find(' ', space + 1) != pair.npos) {
          merges.fail(
              str("[", index, "] is '", pair, "', which is not two tokens with a space between them"));
        }
        append_merge(merges, index, pair.substr(0, space), pair.substr(space + 1));
      }
    } else {
      merges.fail(str("[", index, "] must be a string or a pair of strings"));
    }
    ++index;
  }
}

void BpeModel::append_merge(const JsonNode& merges, size_t index, std::string_view left,
                            std::string_view right) {
  const auto id_of = [&](std::string_view token) {
    const int32_t id = vocab_.find(token);
    if (id < 0) merges.fail(str("[", index, "] needs the token '", token, "', which is not in model.vocab"));
    return id;
  };
  const int32_t left_id = id_of(left), right_id = id_of(right);
  merges_.set(left_id, right_id, {num_merges_++, id_of(std::string(left).append(right))});
}

std::optional<std::string_view> BpeModel::id_to_token(int32_t id) const {
  if (!vocab_.contains(id)) return std::nullopt;
  return vocab_.token(id);
}

void BpeModel::tokenize(std::string_view piece, EncodeScratch& scratch, std::vector<int32_t>& ids) const {
  const uint64_t hash = hash_bytes(piece);
  if (const auto cached = scratch.cache.find(piece, hash); !cached.empty()) {
    ids.insert(ids.end(), cached.begin(), cached.end());
    return;
  }
  const size_t begin = ids.size();
  const int32_t whole = ignore_merges_ ? by_bytes_.find(piece) : -1;
  if (whole >= 0) {
    ids.push_back(whole);
  } else {
    split_to_bytes(piece, ids);
    if (ids.size() - begin <= kMaxShortWord) {
      merge_short(ids, begin);
    } else {
      merge_long(ids, begin);
    }
  }
  scratch.cache.insert(piece, hash, std::span(ids).subspan(begin));
}

void BpeModel::split_to_bytes(std::string_view piece, std::vector<int32_t>& ids) const {
  bool after_unk = false;
  for (char byte : piece) {
    const int32_t id = byte_ids_[static_cast<unsigned char>(byte)];
    if (id >= 0) {
      ids.push_back(id);
      after_unk = false;
    } else if (unk_id_ >= 0 && !(after_unk && fuse_unk_)) {
      ids.push_back(unk_id_);
      after_unk = true;
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

void BpeModel::merge_long(std::vector<int32_t>& ids, size_t begin) const {
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
  for (const Symbol& symbol : symbols) {
    if (symbol.id >= 0) ids[end++] = symbol.id;
  }
  ids.resize(end);
}

std::unique_ptr<const TokenizerModel> make_model(const JsonNode& section) {
  // Early files leave the type of a BPE model out.
  if (section.find("type") && section.at("type").string() != "BPE") {
    fail_unsupported_type(section, "BPE (byte level)");
  }
  return std::make_unique<BpeModel>(section);
}

}  // namespace quire::text
