#include "tokenizer/hf_tokenizer.h"

#include <algorithm>
#include <utility>

#include "quire/error.h"
#include "quire/utf8.h"
#include "tokenizer/tokenizer_directory.h"
#include "tokenizer/utf8_stream.h"
#include "util/str.h"

namespace quire {

IncrementalDetokenizer::~IncrementalDetokenizer() = default;
Tokenizer::~Tokenizer() = default;

std::shared_ptr<const Tokenizer> Tokenizer::load(const std::string& directory) {
  return text::load_tokenizer(directory);
}

namespace text {
namespace {

constexpr size_t kMaxTextBytes = size_t{1} << 30;
constexpr size_t kMaxKeptScratches = 64;
// The scratch of a longer text, some thirty times as much, is not kept.
constexpr size_t kMaxKeptTextBytes = size_t{1} << 20;

// Hands the bytes of each id that is to be seen to `take`.
template <typename Take>
void for_each_token(const DecodeTable& table, std::span<const int32_t> ids, bool skip_special, bool& is_first,
                    const Take& take) {
  for (const int32_t id : ids) {
    if (id < 0) throw InvalidArgument(str("token ids are at least 0, got ", id));
    const auto i = static_cast<size_t>(id);
    if (i >= table.used.size() || !table.used[i] || (skip_special && table.special[i])) continue;
    if (!is_first && !table.separator.empty()) take(table.separator);
    is_first = false;
    take(table.token(id));
  }
}

class Detokenizer final : public IncrementalDetokenizer {
 public:
  Detokenizer(std::shared_ptr<const DecodeTable> table, bool skip_special)
      : table_(std::move(table)), skip_special_(skip_special) {}

  void append(std::span<const int32_t> ids, std::string& out) override {
    for_each_token(*table_, ids, skip_special_, is_first_,
                   [&](std::string_view bytes) { stream_.append(bytes, out); });
  }
  void finish(std::string& out) override { stream_.finish(out); }

 private:
  std::shared_ptr<const DecodeTable> table_;
  bool skip_special_;
  bool is_first_ = true;
  Utf8Stream stream_;
};

// For decoders that mind a token's neighbours. Holds back a run of byte tokens to its end, for an invalid
// one is U+FFFD throughout; and one token where the last of all is written otherwise.
class StagedDetokenizer final : public IncrementalDetokenizer {
 public:
  StagedDetokenizer(std::shared_ptr<const DecodeTable> table, bool skip_special)
      : table_(std::move(table)), skip_special_(skip_special), cuts_left_(table_->decoder->start_cut()) {}

  void append(std::span<const int32_t> ids, std::string& out) override {
    for (const int32_t id : ids) {
      if (id < 0) throw InvalidArgument(str("token ids are at least 0, got ", id));
      const auto i = static_cast<size_t>(id);
      if (i >= table_->used.size() || !table_->used[i] || (skip_special_ && table_->special[i])) continue;
      if (table_->decoder->merges_repeats() && std::exchange(last_, id) == id) continue;
      if (!table_->decoder->needs_last()) {
        take(id, false, out);
      } else if (const int32_t before = std::exchange(held_, id); before >= 0) {
        take(before, false, out);
      }
    }
  }

  void finish(std::string& out) override {
    if (held_ >= 0) take(std::exchange(held_, -1), true, out);
    end_run(out);
  }

 private:
  void take(int32_t id, bool is_last, std::string& out) {
    const auto i = static_cast<size_t>(id);
    if (!table_->byte_tokens.empty() && table_->byte_tokens[i]) {
      run_ += table_->token(id);
      return;
    }
    end_run(out);
    const bool is_first = std::exchange(is_first_, false);
    if ((is_first || is_last) && !table_->written.empty()) {
      put(table_->decoder->end_bytes(table_->written[i], is_first, is_last), out);
    } else {
      put(table_->token(id), out);
    }
  }

  void end_run(std::string& out) {
    if (run_.empty()) return;
    const Decoder& decoder = *table_->decoder;
    if (find_invalid_utf8(run_) == std::string::npos) {
      put(decoder.run_text(run_, std::exchange(is_first_, false)), out);
    } else {
      for (size_t i = 0; i < run_.size(); ++i)
        put(decoder.run_text("\uFFFD", std::exchange(is_first_, false)), out);
    }
    run_.clear();
  }

  void put(std::string_view bytes, std::string& out) {
    const std::string_view cut = table_->decoder->cut_character();
    for (; cuts_left_ > 0 && bytes.starts_with(cut); --cuts_left_) bytes.remove_prefix(cut.size());
    if (!bytes.empty()) cuts_left_ = 0;
    out += bytes;
  }

  std::shared_ptr<const DecodeTable> table_;
  bool skip_special_;
  size_t cuts_left_;
  bool is_first_ = true;
  int32_t held_ = -1;
  int32_t last_ = -1;
  std::string run_;
};

}  // namespace

HfTokenizer::HfTokenizer(std::string_view text, const std::string& file) {
  const Json document = parse_json(text, file);
  build(JsonNode(document, file));
}

HfTokenizer::HfTokenizer(TokenizerParts parts, const std::string& file)
    : model_(std::move(parts.model)), pre_tokenizer_(std::move(parts.pre_tokenizer)) {
  restarts_ = pre_tokenizer_ != nullptr;
  build(JsonNode(parts.document, file));
}

void HfTokenizer::build(const JsonNode& document) {
  document.allow_only({"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
                       "post_processor", "decoder", "model"});
  if (const auto version = document.find("version"); version && version->string() != "1.0") {
    version->fail(str("'", version->string(), "' is not supported; supported: 1.0"));
  }
  // What a training script cut texts to, or filled them up to, stands in "truncation" and "padding"; neither
  // is applied to prompts, as in transformers unless a call asks for it.
  bool gives_bytes = false;
  if (!pre_tokenizer_) {
    const bool can_take = model_ || can_take_bytes(document.at("model"));
    pre_tokenizer_ = make_pre_tokenizer(document.find("pre_tokenizer"), can_take, gives_bytes);
  }
  if (!model_) model_ = make_model(document.at("model"), gives_bytes);
  normalizer_ = make_normalizer(document.find("normalizer"));
  post_processor_ = make_post_processor(document.find("post_processor"));
  added_ = std::make_unique<AddedVocabulary>(document.find("added_tokens"), *model_, normalizer_.get());
  std::unique_ptr<const Decoder> decoder = make_decoder(document.find("decoder"));
  try {
    decode_table_ = make_decode_table(std::move(decoder));
  } catch (const InvalidArgument& error) {
    document.at("decoder").fail(str("is not read: ", error.what()));
  }
}

std::shared_ptr<const DecodeTable> HfTokenizer::make_decode_table(
    std::unique_ptr<const Decoder> decoder) const {
  auto table = std::make_shared<DecodeTable>();
  const int32_t id_end = std::max(model_->id_end(), added_->id_end());
  table->separator = decoder->separator();
  bool has_byte_tokens = false;
  for (int32_t id = 0; id < id_end; ++id) {
    std::optional<std::string> token = id_to_token(id);
    table->offsets.push_back(table->bytes.size());
    table->used.push_back(token.has_value());
    table->special.push_back(token && added_->is_special(*token));
    table->byte_tokens.push_back(token && decoder->is_byte_token(*token));
    has_byte_tokens |= table->byte_tokens.back();
    if (token) table->bytes += decoder->token_bytes(*token);
    if (decoder->has_other_ends()) table->written.push_back(token ? std::move(*token) : std::string());
  }
  table->offsets.push_back(table->bytes.size());
  if (!has_byte_tokens) table->byte_tokens = {};
  table->is_plain = !has_byte_tokens && !decoder->has_other_ends() && decoder->start_cut() == 0 &&
                    !decoder->merges_repeats();
  table->decoder = std::move(decoder);
  return table;
}

std::unique_ptr<EncodeScratch> HfTokenizer::take_scratch() const {
  const std::lock_guard lock(scratches_mutex_);
  if (scratches_.empty()) return std::make_unique<EncodeScratch>();
  std::unique_ptr<EncodeScratch> scratch = std::move(scratches_.back());
  scratches_.pop_back();
  return scratch;
}

void HfTokenizer::give_back(std::unique_ptr<EncodeScratch> scratch) const {
  const std::lock_guard lock(scratches_mutex_);
  if (scratches_.size() < kMaxKeptScratches) scratches_.push_back(std::move(scratch));
}

std::vector<int32_t> HfTokenizer::encode(std::string_view text, bool add_special_tokens) const {
  return encode(text, add_special_tokens, nullptr);
}

Encoding HfTokenizer::encode_with_offsets(std::string_view text, bool add_special_tokens) const {
  TokenOffsets offsets(text, post_processor_ && post_processor_->trims_offsets());
  std::vector<int32_t> ids = encode(text, add_special_tokens, &offsets);
  return {std::move(ids), offsets.spans()};
}

std::vector<int32_t> HfTokenizer::encode(std::string_view text, bool add_special_tokens,
                                         TokenOffsets* offsets) const {
  if (text.size() > kMaxTextBytes)
    throw InvalidArgument(str("text must be at most ", kMaxTextBytes, " bytes"));
  if (const size_t bad = find_invalid_utf8(text); bad != text.npos) {
    throw InvalidArgument(str("text must be valid UTF-8; byte ", bad, " is not"));
  }
  // Lost if something throws, which costs the next call its warm cache.
  std::unique_ptr<EncodeScratch> scratch = take_scratch();
  scratch->ids.clear();
  scratch->regex.start();
  std::vector<AddedVocabulary::Segment> segments;
  added_->split_raw(text, segments);
  const auto cuts_off = [&](size_t i) { return restarts_ && is_special(segments[i].id); };
  for (size_t i = 0; i < segments.size(); ++i) {
    const auto& segment = segments[i];
    const auto place = static_cast<size_t>(segment.text.data() - text.data());
    if (segment.id >= 0) {
      scratch->ids.push_back(segment.id);
      if (offsets != nullptr) offsets->push_back({place, place + segment.text.size()}, segment.text);
    } else {
      const bool begins = place == 0 || (i > 0 && cuts_off(i - 1));
      const bool ends = i + 1 == segments.size() || cuts_off(i + 1);
      if (offsets != nullptr) scratch->text_alignment.start(segment.text, place);
      encode_segment(segment.text, {begins, ends}, *scratch, offsets);
    }
  }
  std::vector<int32_t> ids = scratch->ids;
  if (text.size() > kMaxKeptTextBytes) scratch->forget_text();
  give_back(std::move(scratch));
  if (post_processor_) post_processor_->apply(ids, add_special_tokens, offsets);
  return ids;
}

void HfTokenizer::encode_segment(std::string_view text, Place place, EncodeScratch& scratch,
                                 TokenOffsets* offsets) const {
  Alignment& alignment = scratch.text_alignment;
  std::string own_text;
  if (normalizer_ && !normalizer_->is_surely_normalized(text)) {
    bool drops_start = false;
    own_text = normalizer_->normalize(text, drops_start, offsets != nullptr ? &alignment : nullptr);
    text = own_text;
    place.begins_text = place.begins_text && !drops_start;
  }
  const auto encode_part = [&](const AddedVocabulary::Segment& part) {
    const auto begin = static_cast<size_t>(part.text.data() - text.data());
    const size_t end = begin + part.text.size();
    if (part.id >= 0) {
      scratch.ids.push_back(part.id);
      if (offsets != nullptr) offsets->push_back(alignment.span(begin, end), part.text);
    } else if (!part.text.empty()) {
      if (offsets != nullptr) scratch.part_alignment.start_part(alignment, begin, end);
      const bool begins = place.begins_text && begin == 0, ends = place.ends_text && end == text.size();
      encode_normalized(part.text, {begins, ends}, scratch, offsets);
    }
  };
  if (!added_->has_normalized()) return encode_part({text, -1});
  std::vector<AddedVocabulary::Segment> parts;
  added_->split_normalized(text, parts);
  for (const auto& part : parts) encode_part(part);
}

void HfTokenizer::encode_normalized(std::string_view text, Place place, EncodeScratch& scratch,
                                    TokenOffsets* offsets) const {
  PreTokenized& pre_tokenized = scratch.pre_tokenized;
  pre_tokenized.text = text;
  pre_tokenized.pieces.assign(1, {0, text.size()});
  pre_tokenized.begins_text = place.begins_text;
  pre_tokenized.ends_text = place.ends_text;
  pre_tokenized.alignment = offsets != nullptr ? &scratch.part_alignment : nullptr;
  if (pre_tokenizer_) pre_tokenizer_->apply(pre_tokenized, scratch);
  const auto tokenize = [&](const PreTokenized::Piece& piece, TokenizerModel::TokenPlaces* places) {
    model_->tokenize(pre_tokenized.text.substr(piece.begin, piece.end - piece.begin), scratch, scratch.ids,
                     places);
  };
  if (offsets == nullptr) {
    for (const auto& piece : pre_tokenized.pieces) tokenize(piece, nullptr);
    return;
  }
  for (const auto& piece : pre_tokenized.pieces) {
    scratch.token_places.clear();
    size_t token = scratch.ids.size();
    tokenize(piece, &scratch.token_places);
    for (const auto& [begin, end] : scratch.token_places) {
      offsets->push_back(scratch.part_alignment.span(piece.begin + begin, piece.begin + end),
                         model_->id_to_token(scratch.ids[token++]).value_or(""));
    }
  }
}

std::string HfTokenizer::decode(std::span<const int32_t> ids, bool skip_special_tokens) const {
  std::string text;
  const auto whole = [&](auto&& detokenizer) {
    detokenizer.append(ids, text);
    detokenizer.finish(text);
  };
  if (decode_table_->is_plain) {
    whole(Detokenizer(decode_table_, skip_special_tokens));
  } else {
    whole(StagedDetokenizer(decode_table_, skip_special_tokens));
  }
  return text;
}

std::unique_ptr<IncrementalDetokenizer> HfTokenizer::detokenizer(bool skip_special_tokens) const {
  if (decode_table_->is_plain) return std::make_unique<Detokenizer>(decode_table_, skip_special_tokens);
  return std::make_unique<StagedDetokenizer>(decode_table_, skip_special_tokens);
}

std::optional<std::string> HfTokenizer::id_to_token(int32_t id) const {
  if (const AddedToken* added = added_->find(id)) return added->written;
  if (const auto known = model_->id_to_token(id)) return std::string(*known);
  return std::nullopt;
}

std::optional<int32_t> HfTokenizer::token_to_id(std::string_view token) const {
  int32_t id = added_->token_to_id(token);
  if (id < 0) id = model_->token_to_id(token);
  return id >= 0 ? std::optional(id) : std::nullopt;
}

size_t HfTokenizer::max_token_bytes() const {
  // NFC makes two bytes of six and NFKC one of four; what drops text as it pleases is not waited for.
  return decode_table_->max_token_bytes() * (normalizer_ ? 4 : 1);
}

std::string_view HfTokenizer::token_bytes(int32_t id) const {
  return id >= 0 && id < decode_table_->id_end() ? decode_table_->token(id) : std::string_view();
}

bool HfTokenizer::is_special(int32_t id) const {
  return id >= 0 && id < decode_table_->id_end() && decode_table_->special[static_cast<size_t>(id)];
}

}  // namespace text
}  // namespace quire
