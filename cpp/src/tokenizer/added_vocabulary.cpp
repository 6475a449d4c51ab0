#include "tokenizer/added_vocabulary.h"

#include <algorithm>

#include "util/str.h"

namespace quire::text {

AddedVocabulary::AddedVocabulary(const std::optional<JsonNode>& section, const TokenizerModel& model,
                                 const Normalizer* normalizer)
    : space_(unicode::CodePointSet(unicode::kAddedTokenSpace)),
      word_(unicode::CodePointSet(unicode::kAddedTokenWord)) {
  if (!section) return;
  std::vector<AddedToken> tokens;
  for (const JsonNode& node : section->elements()) {
    node.allow_only({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
    node.at("id").integer(0, INT32_MAX);
    tokens.push_back({.content = node.at("content").string(),
                      .special = node.at("special").boolean(),
                      .single_word = node.at("single_word").boolean(),
                      .lstrip = node.at("lstrip").boolean(),
                      .rstrip = node.at("rstrip").boolean(),
                      .normalized = node.at("normalized").boolean(),
                      .written = {}});
    AddedToken& token = tokens.back();
    bool drops_start = false;
    token.written = token.normalized && normalizer
                        ? normalizer->normalize(token.content, drops_start, nullptr)
                        : token.content;
  }
  for (const AddedToken& token : tokens) {
    if (token.special) special_.insert(token.content);
  }
  special_.erase("");
  for (const AddedToken& token : tokens) add(token, model);

  // Special tokens are looked for first; that matters only for two that normalize to the same.
  std::stable_partition(tokens.begin(), tokens.end(), [&](auto& token) { return is_special(token.content); });
  for (const AddedToken& token : tokens) {
    if (token.content.empty()) continue;
    const int32_t id = token_to_id(token.content);
    (token.normalized ? normalized_ : raw_).insert(token.written, id);
  }
  raw_.link();
  normalized_.link();
}

void AddedVocabulary::add(const AddedToken& token, const TokenizerModel& model) {
  if (token.content.empty()) return;
  int32_t id = token_to_id(token.content);
  if (id < 0) id = model.token_to_id(token.content);
  if (id < 0) id = std::max(static_cast<int32_t>(model.vocab_size()), id_end());
  ids_[token.content] = id;
  by_id_[id] = token;
}

const AddedToken* AddedVocabulary::find(int32_t id) const {
  const auto found = by_id_.find(id);
  return found != by_id_.end() ? &found->second : nullptr;
}

int32_t AddedVocabulary::token_to_id(std::string_view token) const {
  const auto found = ids_.find(std::string(token));
  return found != ids_.end() ? found->second : -1;
}

void AddedVocabulary::split(const TokenTrie& trie, std::string_view text, std::vector<Segment>& out) const {
  size_t done = 0;
  size_t begin = 0, end = 0;
  size_t spaces_end = 0;  // of the last that a token took along: matches within them take the same
  for (size_t from = 0;;) {
    const int32_t id = trie.find(text, from, begin, end);
    if (id < 0) break;
    from = end;
    const AddedToken& token = by_id_.at(id);
    if (token.single_word) {
      size_t before = begin > 0 ? previous_utf8(text, begin) : 0, after = end;
      if (begin > 0 && word_.contains(decode_utf8(text, before))) continue;
      if (end < text.size() && word_.contains(decode_utf8(text, after))) continue;
    }
    // A match that lies in spaces which the token before it took along: with nothing left of it, it is no
    // match; otherwise `tokenizers` counts the spaces twice, and so do we.
    if (token.lstrip) {
      begin = std::max(begin, done);
      while (begin > done) {
        const size_t previous = previous_utf8(text, begin);
        size_t pos = previous;
        if (!space_.contains(decode_utf8(text, pos))) break;
        begin = previous;
      }
    }
    if (token.rstrip) {
      if (end > spaces_end) spaces_end = space_.skip_members(text, end);
      end = spaces_end;
    }
    if (done < begin) out.push_back({text.substr(done, begin - done), -1});
    if (begin < end) out.push_back({text.substr(begin, end - begin), id});
    done = end;
  }
  if (done < text.size()) out.push_back({text.substr(done), -1});
}

}  // namespace quire::text
