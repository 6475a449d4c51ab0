#include "tokenizer/sentencepiece.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <optional>

#include "quire/error.h"
#include "quire/utf8.h"
#include "tokenizer/bpe_model.h"
#include "tokenizer/splitter.h"
#include "tokenizer/unigram_model.h"
#include "util/str.h"
#include "util/utf8.h"

namespace quire::text {
namespace {

using Type = SentencePieceFile::Type;

constexpr std::string_view kSpaceMark = "\u2581";
constexpr size_t kMaxPieces = size_t{1} << 24;
// A longer piece than any in use, so that a file cannot ask for more ways to merge than it has bytes.
constexpr size_t kMaxPieceBytes = 4096;

// The fields of one message of a protocol buffer, one after the other.
class Fields {
 public:
  Fields(std::string_view bytes, const std::string& file) : rest_(bytes), file_(&file) {}

  uint32_t number = 0;
  uint64_t value = 0;      // of an integer, or the bits of a float
  std::string_view bytes;  // of a string or a message

  bool next() {
    if (rest_.empty()) return false;
    const uint64_t key = varint();
    number = static_cast<uint32_t>(key >> 3);
    value = 0;
    bytes = {};
    switch (key & 7) {
      case 0: value = varint(); break;
      case 1: value = fixed(8); break;
      case 2: bytes = take(varint()); break;
      case 5: value = fixed(4); break;
      default: fail(str("wire type ", key & 7, " of field ", number));
    }
    return true;
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw InvalidArgument(str(*file_, ": is no SentencePiece model: ", what));
  }

 private:
  std::string_view take(uint64_t size) {
    if (size > rest_.size()) fail(str("a field of ", size, " bytes where ", rest_.size(), " are left"));
    const std::string_view taken = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return taken;
  }
  uint64_t fixed(size_t size) {
    uint64_t bits = 0;
    const std::string_view taken = take(size);
    for (size_t i = 0; i < size; ++i) bits |= uint64_t{static_cast<unsigned char>(taken[i])} << (8 * i);
    return bits;
  }
  uint64_t varint() {
    uint64_t result = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1)[0]);
      result |= uint64_t{byte & 0x7Fu} << shift;
      if (byte < 0x80) return result;
    }
    fail("an integer of more than 64 bits");
  }

  std::string_view rest_;
  const std::string* file_;
};

SentencePieceFile::Piece parse_piece(std::string_view bytes, size_t index, const std::string& file) {
  SentencePieceFile::Piece piece;
  for (Fields fields(bytes, file); fields.next();) {
    if (fields.number == 1) piece.text = fields.bytes;
    if (fields.number == 2) piece.score = std::bit_cast<float>(static_cast<uint32_t>(fields.value));
    if (fields.number != 3) continue;
    if (fields.value < 1 || fields.value > 6) fields.fail(str("pieces[", index, "].type is ", fields.value));
    piece.type = static_cast<Type>(fields.value);
  }
  const std::string name = str(file, ": pieces[", index, "]");
  if (piece.text.empty()) throw InvalidArgument(name + " is empty");
  if (piece.text.size() > kMaxPieceBytes)
    throw InvalidArgument(str(name, " has ", piece.text.size(), " bytes; at most ", kMaxPieceBytes));
  if (find_invalid_utf8(piece.text) != std::string::npos) throw InvalidArgument(name + " is not valid UTF-8");
  if (!std::isfinite(piece.score)) throw InvalidArgument(str(name, " has the score ", piece.score));
  return piece;
}

void parse_trainer(std::string_view bytes, const std::string& file, SentencePieceFile& parsed) {
  for (Fields fields(bytes, file); fields.next();) {
    switch (fields.number) {
      case 3:
        if (fields.value != 1 && fields.value != 2) {
          throw InvalidArgument(str(file, ": trainer_spec.model_type is ", fields.value,
                                    ", which is not supported; supported: 1 (unigram), 2 (BPE)"));
        }
        parsed.is_bpe = fields.value == 2;
        break;
      case 24:
        if (fields.value != 0)
          throw InvalidArgument(file +
                                ": trainer_spec.treat_whitespace_as_suffix is true, which is not supported");
        break;
      case 35: parsed.byte_fallback = fields.value != 0; break;
      default: break;
    }
  }
}

void parse_normalizer(std::string_view bytes, const std::string& file, SentencePieceFile& parsed) {
  for (Fields fields(bytes, file); fields.next();) {
    switch (fields.number) {
      case 2: parsed.charsmap = fields.bytes; break;
      case 3: parsed.add_dummy_prefix = fields.value != 0; break;
      case 4: parsed.remove_extra_whitespaces = fields.value != 0; break;
      case 5:
        if (fields.value == 0)
          throw InvalidArgument(file +
                                ": normalizer_spec.escape_whitespaces is false, which is not supported");
        break;
      default: break;
    }
  }
}

class SentencePieceNormalizer final : public PreTokenizer {
 public:
  SentencePieceNormalizer(const SentencePieceFile& parsed, const std::string& file)
      : add_dummy_prefix_(parsed.add_dummy_prefix), squeezes_(parsed.remove_extra_whitespaces) {
    if (parsed.charsmap.empty()) return;
    try {
      map_.emplace(parsed.charsmap);
    } catch (const InvalidArgument& error) {
      throw InvalidArgument(str(file, ": normalizer_spec.precompiled_charsmap ", error.what()));
    }
  }

  void apply(PreTokenized& pre_tokenized, EncodeScratch&) const override {
    rewrite_pieces(pre_tokenized, [&](std::string_view text, const auto& piece, Rewriter& out) {
      const bool begins = pre_tokenized.begins_text && piece.begin == 0;
      const bool ends = pre_tokenized.ends_text && piece.end == pre_tokenized.text.size();
      write(text, piece.begin, begins, ends, out);
    });
    std::erase_if(pre_tokenized.pieces, [](const auto& piece) { return piece.begin == piece.end; });
  }

 private:
  // What the next characters become; advances past them.
  std::string_view next(std::string_view text, size_t& pos) const {
    if (const auto match = map_ ? map_->find_longest(text.substr(pos)) : std::nullopt) {
      // A key may end within a character; the rest of it cannot be read then.
      if (pos + match->length == text.size() ||
          (static_cast<unsigned char>(text[pos + match->length]) & 0xC0) != 0x80) {
        pos += match->length;
        return match->replacement;
      }
    }
    const size_t begin = pos;
    decode_utf8(text, pos);
    return text.substr(begin, pos - begin);
  }

  // `text` lies at `place` in the source.
  void write(std::string_view text, size_t place, bool begins, bool ends, Rewriter& out) const {
    const size_t first = out.written().size();
    size_t pos = 0;
    while (squeezes_ && begins && pos < text.size()) {
      size_t after = pos;
      if (next(text, after) != " ") break;
      pos = after;
    }
    if (pos == text.size()) return;
    if (begins && add_dummy_prefix_) out.put(kSpaceMark, place + pos, place + pos + 1);
    bool after_space = squeezes_ && begins;
    while (pos < text.size()) {
      const size_t begin = pos;
      std::string_view written = next(text, pos);
      while (after_space && written.starts_with(' ')) written.remove_prefix(1);
      if (written.empty()) continue;
      for (const char& c : written)
        out.put(c == ' ' ? kSpaceMark : std::string_view(&c, 1), place + begin, place + pos);
      after_space = squeezes_ && written.ends_with(' ');
    }
    while (squeezes_ && ends && out.written().size() > first && out.written().ends_with(kSpaceMark))
      out.cut(out.written().size() - kSpaceMark.size());
  }

  std::optional<CharacterMap> map_;
  bool add_dummy_prefix_;
  bool squeezes_;
};

bool is_in_text(Type type) { return type == Type::kNormal || type == Type::kUserDefined; }

// Any two neighbours that are a piece together may merge, the highest score first.
BpeParts make_bpe(const SentencePieceFile& parsed, const std::string& file) {
  BpeParts parts;
  std::vector<float> scores;
  for (size_t i = 0; i < parsed.pieces.size(); ++i) {
    const auto& piece = parsed.pieces[i];
    if (!parts.vocab.insert(piece.text, static_cast<int32_t>(i)))
      throw InvalidArgument(str(file, ": pieces[", i, "] is '", piece.text, "' a second time"));
    if (is_in_text(piece.type)) scores.push_back(piece.score);
  }
  std::ranges::sort(scores, std::greater());
  scores.erase(std::unique(scores.begin(), scores.end()), scores.end());
  for (size_t i = 0; i < parsed.pieces.size(); ++i) {
    const auto& [text, score, type] = parsed.pieces[i];
    if (!is_in_text(type)) continue;
    const auto rank = std::ranges::lower_bound(scores, score, std::greater()) - scores.begin();
    size_t split = 0;
    for (decode_utf8(text, split); split < text.size(); decode_utf8(text, split)) {
      const int32_t left = parts.vocab.find(std::string_view(text).substr(0, split));
      const int32_t right = left >= 0 ? parts.vocab.find(std::string_view(text).substr(split)) : -1;
      if (right < 0) continue;
      parts.merges.push_back({left, right, {static_cast<int32_t>(rank), static_cast<int32_t>(i)}});
    }
  }
  parts.byte_fallback = parsed.byte_fallback;
  parts.fuse_unk = true;
  parts.unk_id = parsed.find(Type::kUnknown);
  return parts;
}

UnigramParts make_unigram(const SentencePieceFile& parsed) {
  UnigramParts parts;
  for (const auto& piece : parsed.pieces) {
    parts.vocab.push_back({piece.text, piece.score});
    parts.unused.push_back(piece.type != Type::kNormal);
  }
  parts.byte_fallback = parsed.byte_fallback;
  parts.unk_id = parsed.find(Type::kUnknown);
  parts.is_sentencepiece = true;
  return parts;
}

}  // namespace

int32_t SentencePieceFile::find(Type type) const {
  const auto found = std::ranges::find(pieces, type, &Piece::type);
  return found != pieces.end() ? static_cast<int32_t>(found - pieces.begin()) : -1;
}

SentencePieceFile parse_sentencepiece(std::string_view bytes, const std::string& file) {
  SentencePieceFile parsed;
  for (Fields fields(bytes, file); fields.next();) {
    if (fields.number == 1) {
      if (parsed.pieces.size() == kMaxPieces) fields.fail(str("more than ", kMaxPieces, " pieces"));
      parsed.pieces.push_back(parse_piece(fields.bytes, parsed.pieces.size(), file));
    } else if (fields.number == 2) {
      parse_trainer(fields.bytes, file, parsed);
    } else if (fields.number == 3) {
      parse_normalizer(fields.bytes, file, parsed);
    }
  }
  if (parsed.pieces.empty()) throw InvalidArgument(file + ": is no SentencePiece model: it has no pieces");
  return parsed;
}

std::unique_ptr<const TokenizerModel> make_model(const SentencePieceFile& parsed, const std::string& file) {
  if (parsed.is_bpe) return std::make_unique<BpeModel>(make_bpe(parsed, file));
  try {
    return std::make_unique<UnigramModel>(make_unigram(parsed));
  } catch (const std::domain_error& error) {
    throw InvalidArgument(str(file, ": pieces", error.what()));
  }
}

std::unique_ptr<const PreTokenizer> make_pre_tokenizer(const SentencePieceFile& parsed,
                                                       const std::string& file) {
  return std::make_unique<SentencePieceNormalizer>(parsed, file);
}

Json make_sections(const SentencePieceFile& parsed, bool adds_bos, bool adds_eos) {
  Json added = Json::array();
  Json template_pieces = Json::array();
  Json template_tokens = Json::object();
  const auto add_to_template = [&](const char* text) {
    for (size_t i = 0; i < parsed.pieces.size(); ++i) {
      if (parsed.pieces[i].type != Type::kControl || parsed.pieces[i].text != text) continue;
      template_pieces.push_back({{"SpecialToken", {{"id", text}, {"type_id", 0}}}});
      template_tokens[text] = {{"id", text}, {"ids", Json::array({i})}, {"tokens", Json::array({text})}};
    }
  };
  for (size_t i = 0; i < parsed.pieces.size(); ++i) {
    const auto& [text, score, type] = parsed.pieces[i];
    if (type != Type::kControl && type != Type::kUnknown && type != Type::kUserDefined) continue;
    added.push_back({{"id", i},
                     {"content", text},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", type != Type::kUserDefined}});
  }
  if (adds_bos) add_to_template("<s>");
  if (adds_bos) add_to_template("<bos>");
  template_pieces.push_back({{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
  if (adds_eos) add_to_template("</s>");
  if (adds_eos) add_to_template("<eos>");
  Json decoders = Json::array();
  decoders.push_back({{"type", "Replace"}, {"pattern", {{"String", kSpaceMark}}}, {"content", " "}});
  decoders.push_back({{"type", "ByteFallback"}});
  decoders.push_back({{"type", "Fuse"}});
  if (parsed.add_dummy_prefix)
    decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  return {{"added_tokens", std::move(added)},
          {"decoder", {{"type", "Sequence"}, {"decoders", std::move(decoders)}}},
          {"post_processor",
           {{"type", "TemplateProcessing"},
            {"single", std::move(template_pieces)},
            {"special_tokens", std::move(template_tokens)}}}};
}

}  // namespace quire::text
