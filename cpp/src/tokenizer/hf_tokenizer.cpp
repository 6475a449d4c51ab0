#include "tokenizer/hf_tokenizer.h"

#include <algorithm>
#include <filesystem>

#include "quire/error.h"
#include "tokenizer/utf8_stream.h"
#include "util/str.h"

namespace quire {

IncrementalDetokenizer::~IncrementalDetokenizer() = default;
Tokenizer::~Tokenizer() = default;

namespace {

// Refuses by name the other forms that a directory without tokenizer.json may hold its tokenizer in.
void check_other_forms(const std::string& directory) {
  const auto has = [&](const char* name) {
    std::error_code unreadable;
    return std::filesystem::exists(directory + "/" + name, unreadable);
  };
  constexpr const char* kOtherwise = "; with skip_tokenizer_init an engine takes and gives token ids";
  if (has("tokenizer.model")) {
    throw InvalidArgument(str(directory,
                              ": has no tokenizer.json but a tokenizer.model (SentencePiece or "
                              "tiktoken), which is not read; supported: byte-level BPE in tokenizer.json",
                              kOtherwise));
  }
  if (has("vocab.json") && has("merges.txt")) {
    throw InvalidArgument(
        str(directory,
            ": has vocab.json and merges.txt but no tokenizer.json; write one with "
            "transformers: AutoTokenizer.from_pretrained(directory).save_pretrained(directory)",
            kOtherwise));
  }
}

}  // namespace

std::shared_ptr<const Tokenizer> Tokenizer::load(const std::string& directory) {
  const std::string path = directory + "/tokenizer.json";
  if (std::error_code error; !std::filesystem::exists(path, error)) check_other_forms(directory);
  return std::make_shared<text::HfTokenizer>(read_text_file(path), path);
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

}  // namespace

HfTokenizer::HfTokenizer(std::string_view text, const std::string& file) {
  const Json document = parse_json(text, file);
  build(JsonNode(document, file));
}

void HfTokenizer::build(const JsonNode& document) {
  document.allow_only({"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
                       "post_processor", "decoder", "model"});
  if (const auto version = document.find("version"); version && version->string() != "1.0") {
    version->fail(str("'", version->string(), "' is not supported; supported: 1.0"));
  }
  // What a training script cut texts to, or filled them up to, stands in "truncation" and "padding"; neither
  // is applied to prompts, as in transformers unless a call asks for it.
  model_ = make_model(document.at("model"));
  normalizer_ = make_normalizer(document.find("normalizer"));
  pre_tokenizer_ = make_pre_tokenizer(document.find("pre_tokenizer"));
  post_processor_ = make_post_processor(document.find("post_processor"));
  decoder_ = make_decoder(document.find("decoder"));
  added_ = std::make_unique<AddedVocabulary>(document.find("added_tokens"), *model_, normalizer_.get());
  decode_table_ = make_decode_table();
}

std::shared_ptr<const DecodeTable> HfTokenizer::make_decode_table() const {
  auto table = std::make_shared<DecodeTable>();
  const int32_t id_end = std::max(model_->id_end(), added_->id_end());
  table->separator = decoder_->separator();
  for (int32_t id = 0; id < id_end; ++id) {
    const std::optional<std::string> token = id_to_token(id);
    table->offsets.push_back(table->bytes.size());
    table->used.push_back(token.has_value());
    table->special.push_back(token && added_->is_special(*token));
    if (token) table->bytes += decoder_->token_bytes(*token);
  }
  table->offsets.push_back(table->bytes.size());
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
  if (text.size() > kMaxTextBytes)
    throw InvalidArgument(str("text must be at most ", kMaxTextBytes, " bytes"));
  if (const size_t bad = find_invalid_utf8(text); bad != text.npos) {
    throw InvalidArgument(str("text must be valid UTF-8; byte ", bad, " is not"));
  }
  // Lost if something throws, which costs the next call its warm cache.
  std::unique_ptr<EncodeScratch> scratch = take_scratch();
  scratch->ids.clear();
  std::vector<AddedVocabulary::Segment> segments;
  added_->split_raw(text, segments);
  for (const auto& segment : segments) {
    if (segment.id >= 0) {
      scratch->ids.push_back(segment.id);
    } else {
      encode_segment(segment.text, *scratch);
    }
  }
  std::vector<int32_t> ids = scratch->ids;
  if (text.size() > kMaxKeptTextBytes) scratch->forget_text();
  give_back(std::move(scratch));
  if (post_processor_) post_processor_->apply(ids, add_special_tokens);
  return ids;
}

void HfTokenizer::encode_segment(std::string_view text, EncodeScratch& scratch) const {
  std::string own_text;
  if (normalizer_ && !normalizer_->is_surely_normalized(text)) {
    own_text = normalizer_->normalize(text);
    text = own_text;
  }
  if (!added_->has_normalized()) return encode_normalized(text, scratch);
  std::vector<AddedVocabulary::Segment> segments;
  added_->split_normalized(text, segments);
  for (const auto& segment : segments) {
    if (segment.id >= 0) {
      scratch.ids.push_back(segment.id);
    } else {
      encode_normalized(segment.text, scratch);
    }
  }
}

void HfTokenizer::encode_normalized(std::string_view text, EncodeScratch& scratch) const {
  if (text.empty()) return;
  PreTokenized& pre_tokenized = scratch.pre_tokenized;
  pre_tokenized.text = text;
  pre_tokenized.pieces.assign(1, {0, text.size()});
  pre_tokenizer_->apply(pre_tokenized, scratch);
  for (const auto& piece : pre_tokenized.pieces) {
    model_->tokenize(pre_tokenized.text.substr(piece.begin, piece.end - piece.begin), scratch, scratch.ids);
  }
}

std::string HfTokenizer::decode(std::span<const int32_t> ids, bool skip_special_tokens) const {
  std::string text;
  Detokenizer detokenizer(decode_table_, skip_special_tokens);
  detokenizer.append(ids, text);
  detokenizer.finish(text);
  return text;
}

std::unique_ptr<IncrementalDetokenizer> HfTokenizer::detokenizer(bool skip_special_tokens) const {
  return std::make_unique<Detokenizer>(decode_table_, skip_special_tokens);
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
