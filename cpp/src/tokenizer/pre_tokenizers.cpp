#include <algorithm>

#include "quire/error.h"
#include "tokenizer/pipeline.h"
#include "tokenizer/unicode.h"
#include "util/str.h"

namespace quire::text {
namespace {

using Piece = PreTokenized::Piece;

constexpr std::string_view kSupportedPreTokenizers = "ByteLevel, Split, Digits, Sequence";

// What becomes of the matches of a pattern, and of the text between them.
enum class Behavior { kIsolated, kRemoved, kMergedWithPrevious, kMergedWithNext, kContiguous };

// Collects the stretches of one piece, in order, as pieces.
class Splitter {
 public:
  Splitter(Behavior behavior, std::vector<Piece>& out) : behavior_(behavior), out_(out), first_(out.size()) {}

  void add(size_t begin, size_t end, bool is_match) {
    // A first stretch has nothing before it to be joined to.
    const bool has_previous = out_.size() > first_;
    switch (behavior_) {
      case Behavior::kIsolated: push(begin, end); break;
      case Behavior::kRemoved:
        if (!is_match) push(begin, end);
        break;
      case Behavior::kContiguous:
        if (has_previous && is_match == previous_match_) {
          out_.back().end = end;
        } else {
          push(begin, end);
        }
        break;
      case Behavior::kMergedWithPrevious:
        if (has_previous && is_match && !previous_match_) {
          out_.back().end = end;
        } else {
          push(begin, end);
        }
        break;
      case Behavior::kMergedWithNext:
        // A match takes what follows it, unless that is a match too.
        if (has_previous && previous_match_ && !is_match) {
          out_.back().end = end;
        } else {
          push(begin, end);
        }
        break;
    }
    previous_match_ = is_match;
  }

 private:
  void push(size_t begin, size_t end) { out_.push_back({begin, end}); }

  Behavior behavior_;
  std::vector<Piece>& out_;
  size_t first_;
  bool previous_match_ = false;
};

void drop_empty(std::vector<Piece>& pieces) {
  std::erase_if(pieces, [](const Piece& piece) { return piece.begin == piece.end; });
}

// Cuts every piece at the matches of a regex.
void split_at_matches(const Regex& regex, bool invert, Behavior behavior, PreTokenized& pre_tokenized,
                      RegexScratch& scratch) {
  std::vector<Piece>& out = pre_tokenized.new_pieces;
  out.clear();
  for (const Piece& piece : pre_tokenized.pieces) {
    // The pattern sees this piece only: what ends here ends the text.
    const std::string_view text = pre_tokenized.text.substr(piece.begin, piece.end - piece.begin);
    Splitter splitter(behavior, out);
    const auto add = [&](size_t begin, size_t end, bool is_match) {
      splitter.add(piece.begin + begin, piece.begin + end, is_match != invert);
    };
    size_t from = 0, done = 0;
    bool any = false;
    Regex::Match match{};
    scratch.start_text(text);
    while (from <= text.size() && regex.find(text, from, scratch, match)) {
      // An empty match right after the last one would be found for ever.
      if (match.begin == match.end && any && match.end == done) {
        if (from == text.size()) break;
        decode_utf8(text, from);
        continue;
      }
      if (done != match.begin) add(done, match.begin, false);
      add(match.begin, match.end, true);
      from = done = match.end;
      any = true;
    }
    if (done != text.size()) add(done, text.size(), false);
  }
  drop_empty(out);
  pre_tokenized.pieces.swap(out);
}

class Split final : public PreTokenizer {
 public:
  explicit Split(const JsonNode& section)
      : regex_(make_regex(section)),
        behavior_(read_behavior(section.at("behavior"))),
        invert_(section.at("invert").boolean()) {
    section.allow_only({"type", "pattern", "behavior", "invert"});
  }
  void apply(PreTokenized& pre_tokenized, EncodeScratch& scratch) const override {
    split_at_matches(regex_, invert_, behavior_, pre_tokenized, scratch.regex);
  }

 private:
  static Regex make_regex(const JsonNode& section) {
    const JsonNode pattern = section.at("pattern");
    pattern.allow_only({"String", "Regex"});
    const bool literal = pattern.find("String").has_value();
    const JsonNode source = pattern.at(literal ? "String" : "Regex");
    try {
      return Regex(literal ? escaped(source.string()) : source.string());
    } catch (const InvalidArgument& error) {
      source.fail(error.what());
    }
  }

  static std::string escaped(const std::string& text) {
    std::string pattern;
    for (char c : text) {
      if (std::string_view("\\.+*?()|[]{}^$#&-~/").find(c) != std::string_view::npos) pattern += '\\';
      pattern += c;
    }
    return pattern;
  }

  static Behavior read_behavior(const JsonNode& node) {
    static constexpr std::pair<std::string_view, Behavior> kNames[] = {
        {"Isolated", Behavior::kIsolated},
        {"Removed", Behavior::kRemoved},
        {"MergedWithPrevious", Behavior::kMergedWithPrevious},
        {"MergedWithNext", Behavior::kMergedWithNext},
        {"Contiguous", Behavior::kContiguous}};
    for (const auto& [name, behavior] : kNames) {
      if (node.string() == name) return behavior;
    }
    node.fail(str("'", node.string(), "' is not supported"));
  }

  Regex regex_;
  Behavior behavior_;
  bool invert_;
};

// Cuts numbers out, digit by digit or run by run.
class Digits final : public PreTokenizer {
 public:
  explicit Digits(const JsonNode& section)
      : individual_(section.at("individual_digits").boolean()),
        numeric_(unicode::CodePointSet(unicode::kNumeric)) {
    section.allow_only({"type", "individual_digits"});
  }
  void apply(PreTokenized& pre_tokenized, EncodeScratch&) const override {
    std::vector<Piece>& out = pre_tokenized.new_pieces;
    out.clear();
    const std::string_view text = pre_tokenized.text;
    for (const Piece& piece : pre_tokenized.pieces) {
      size_t run = piece.begin;  // where the current run of digits, or of anything else, began
      bool run_is_numeric = false;
      for (size_t pos = piece.begin, next = pos; pos < piece.end; pos = next) {
        const bool is_numeric = numeric_.contains(decode_utf8(text, next));
        if (pos > run && (is_numeric != run_is_numeric || (is_numeric && individual_))) {
          out.push_back({run, pos});
          run = pos;
        }
        run_is_numeric = is_numeric;
      }
      out.push_back({run, piece.end});
    }
    pre_tokenized.pieces.swap(out);
  }

 private:
  bool individual_;
  unicode::CodePointBitmap numeric_;
};

// Marks the way to byte-level tokens. That the bytes are written in an alphabet of their own matters to
// whatever looks at the text afterwards; nothing does, since this stage must be the last (see Sequence), and
// BpeModel takes the bytes as they are.
class ByteLevel final : public PreTokenizer {
 public:
  explicit ByteLevel(const JsonNode& section)
      : regex_(R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)"),
        add_prefix_space_(section.at("add_prefix_space").boolean()),
        use_regex_(section.boolean_or("use_regex", true)) {
    section.boolean_or("trim_offsets", true);  // offsets are not kept
    section.allow_only({"type", "add_prefix_space", "trim_offsets", "use_regex"});
  }
  void apply(PreTokenized& pre_tokenized, EncodeScratch& scratch) const override {
    if (add_prefix_space_) prefix_spaces(pre_tokenized);
    if (use_regex_) split_at_matches(regex_, false, Behavior::kIsolated, pre_tokenized, scratch.regex);
  }

 private:
  // Gives each piece a space to begin with, if it has none.
  static void prefix_spaces(PreTokenized& pre_tokenized) {
    std::string spaced;
    for (Piece& piece : pre_tokenized.pieces) {
      const std::string_view text = pre_tokenized.text.substr(piece.begin, piece.end - piece.begin);
      const size_t begin = spaced.size();
      if (!text.starts_with(' ')) spaced += ' ';
      spaced += text;
      piece = {begin, spaced.size()};
    }
    pre_tokenized.own_text = std::move(spaced);
    pre_tokenized.text = pre_tokenized.own_text;
  }

  Regex regex_;
  bool add_prefix_space_;
  bool use_regex_;
};

class Sequence final : public PreTokenizer {
 public:
  explicit Sequence(std::vector<std::unique_ptr<const PreTokenizer>> stages) : stages_(std::move(stages)) {}
  void apply(PreTokenized& pre_tokenized, EncodeScratch& scratch) const override {
    for (const auto& stage : stages_) stage->apply(pre_tokenized, scratch);
  }

 private:
  std::vector<std::unique_ptr<const PreTokenizer>> stages_;
};

// Appends the stages of `section`, sequences flattened.
void collect(const JsonNode& section, std::vector<std::unique_ptr<const PreTokenizer>>& stages) {
  const std::string& type = section.at("type").string();
  if (!stages.empty() && dynamic_cast<const ByteLevel*>(stages.back().get())) {
    section.fail("comes after ByteLevel, which must be the last pre-tokenizer");
  }
  if (type == "Sequence") {
    section.allow_only({"type", "pretokenizers"});
    for (const JsonNode& stage : section.at("pretokenizers").elements()) collect(stage, stages);
    return;
  }
  check_num_stages(section, stages.size() + 1);
  if (type == "Split") {
    stages.push_back(std::make_unique<Split>(section));
  } else if (type == "Digits") {
    stages.push_back(std::make_unique<Digits>(section));
  } else if (type == "ByteLevel") {
    stages.push_back(std::make_unique<ByteLevel>(section));
  } else {
    fail_unsupported_type(section, kSupportedPreTokenizers);
  }
}

}  // namespace

std::unique_ptr<const PreTokenizer> make_pre_tokenizer(const std::optional<JsonNode>& section) {
  std::vector<std::unique_ptr<const PreTokenizer>> stages;
  if (section) collect(*section, stages);
  if (stages.empty() || !dynamic_cast<const ByteLevel*>(stages.back().get())) {
    throw InvalidArgument("tokenizer.json: pre_tokenizer has no ByteLevel; only byte-level BPE is supported");
  }
  if (stages.size() == 1) return std::move(stages[0]);
  return std::make_unique<Sequence>(std::move(stages));
}

}  // namespace quire::text
