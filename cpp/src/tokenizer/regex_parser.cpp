#include <algorithm>

#include "quire/error.h"
#include "tokenizer/regex_ast.h"
#include "util/str.h"

namespace quire::text {
namespace {

using unicode::CodePointSet;
using Kind = RegexNode::Kind;

constexpr int kMaxNesting = 100;
constexpr int kMaxRepeat = 1000;

RegexNodePtr make_node(Kind kind) {
  auto node = std::make_unique<RegexNode>();
  node->kind = kind;
  return node;
}

RegexNodePtr make_set(CodePointSet set) {
  RegexNodePtr node = make_node(Kind::kSet);
  node->set = std::move(set);
  return node;
}

bool is_digit(char32_t c) { return c >= '0' && c <= '9'; }

int hex_value(char32_t c) {
  if (is_digit(c)) return static_cast<int>(c - '0');
  if (c >= 'a' && c <= 'f') return static_cast<int>(c - 'a') + 10;
  if (c >= 'A' && c <= 'F') return static_cast<int>(c - 'A') + 10;
  return -1;
}

// Adds to a set the characters that (?i:) takes for its members.
CodePointSet with_other_case(const CodePointSet& set) {
  std::vector<CodePointRange> added;
  const auto classes = unicode::kCaseClasses;
  for (size_t start = 0; start < classes.size();) {
    size_t end = start;
    bool is_member = false;
    for (; classes[end] != 0; ++end) is_member |= set.contains(classes[end]);
    for (size_t i = start; is_member && i < end; ++i) added.push_back({classes[i], classes[i]});
    start = end + 1;
  }
  return set.united_with(CodePointSet(added));
}

// The lower case of a character that has one, for comparing with kMultipleFolds.
char32_t simple_fold(char32_t c) { return c >= 'A' && c <= 'Z' ? c + 32 : c; }

class RegexParser {
 public:
  explicit RegexParser(std::string_view pattern) : pattern_(unicode::to_utf32(pattern)) {}

  RegexNodePtr parse() {
    RegexNodePtr node = parse_alternatives();
    if (!at_end()) fail("')' without '('", pos_);
    return node;
  }

 private:
  bool at_end() const { return pos_ >= pattern_.size(); }
  char32_t peek(size_t ahead = 0) const {
    return pos_ + ahead < pattern_.size() ? pattern_[pos_ + ahead] : 0;
  }
  bool skip(std::u32string_view text) {
    if (std::u32string_view(pattern_).substr(pos_, text.size()) != text) return false;
    pos_ += text.size();
    return true;
  }

  [[noreturn]] void fail(const std::string& what, size_t position) const {
    throw InvalidArgument(str("regular expression: ", what, " at position ", position, " is not supported"));
  }

  RegexNodePtr parse_alternatives() {
    if (++nesting_ > kMaxNesting) fail("nesting deeper than 100", pos_);
    RegexNodePtr alternatives = make_node(Kind::kAlternate);
    do {
      alternatives->children.push_back(parse_sequence());
    } while (skip(U"|"));
    --nesting_;
    return alternatives->children.size() == 1 ? std::move(alternatives->children[0])
                                              : std::move(alternatives);
  }

  RegexNodePtr parse_sequence() {
    RegexNodePtr sequence = make_node(Kind::kConcat);
    std::u32string literals;  // the run of plain characters just read
    while (!at_end() && peek() != '|' && peek() != ')') {
      const size_t start = pos_;
      literal_ = 0;
      RegexNodePtr part = parse_atom();
      const char32_t literal = literal_;
      const bool repeated = parse_quantifiers(part, start);
      if (literal != 0 && !repeated) {
        literals += literal;
        if (ignore_case_) check_folding(literals, start);
      } else {
        literals.clear();
      }
      sequence->children.push_back(std::move(part));
    }
    return sequence->children.size() == 1 ? std::move(sequence->children[0]) : std::move(sequence);
  }

  // (?i:ss) would also have to match "ß"; no split pattern needs that.
  void check_folding(const std::u32string& literals, size_t position) const {
    const auto folds = unicode::kMultipleFolds;
    for (size_t start = 0; start < folds.size();) {
      size_t length = 0;
      while (folds[start + length] != 0) ++length;
      const auto tail =
          literals.size() < length ? literals.end() : literals.end() - static_cast<ptrdiff_t>(length);
      if (literals.size() >= length &&
          std::equal(tail, literals.end(), folds.begin() + static_cast<ptrdiff_t>(start),
                     [](char32_t a, char32_t b) { return simple_fold(a) == b; })) {
        fail("a case-insensitive match of characters that also fold into one", position);
      }
      start += length + 1;
    }
  }

  // Wraps `node` in the quantifiers that follow it; false when there are none.
  bool parse_quantifiers(RegexNodePtr& node, size_t start) {
    bool any = false;
    for (;; any = true) {
      int min = 0, max = RegexNode::kUnlimited;
      const size_t position = pos_;
      bool interval = false;
      if (skip(U"?")) {
        max = 1;
      } else if (skip(U"+")) {
        min = 1;
      } else if (peek() == '{') {
        parse_interval(min, max);
        interval = true;
      } else if (!skip(U"*")) {
        return any;
      }
      if (node->kind == Kind::kAssert || node->kind == Kind::kLook) fail("a repeated assertion", position);
      if (any) fail("a quantifier after a quantifier", position);
      RegexNodePtr repeat = make_node(Kind::kRepeat);
      repeat->min = min;
      repeat->max = max;
      // In this dialect {m,n}+ is no possessive form but a second quantifier, which the loop refuses.
      if (skip(U"?")) {
        if (interval && min == max) fail("a lazy quantifier of fixed length", position);
        repeat->mode = RegexNode::Mode::kLazy;
      } else if (!interval && skip(U"+")) {
        repeat->mode = RegexNode::Mode::kPossessive;
      }
      if (node->is_nullable() && (max == RegexNode::kUnlimited || max > 1)) {
        fail("repeating a group that can match nothing", start);
      }
      repeat->children.push_back(std::move(node));
      node = std::move(repeat);
    }
  }

  void parse_interval(int& min, int& max) {
    const size_t start = pos_++;
    const auto number = [&] {
      if (!is_digit(peek())) fail("'{' other than {n}, {n,} and {n,m}", start);
      int value = 0;
      while (is_digit(peek())) {
        value = value * 10 + static_cast<int>(pattern_[pos_++] - '0');
        if (value > kMaxRepeat) fail("a repeat count above 1000", start);
      }
      return value;
    };
    min = number();
    max = min;
    if (skip(U",")) max = peek() == '}' ? RegexNode::kUnlimited : number();
    if (!skip(U"}")) fail("'{' other than {n}, {n,} and {n,m}", start);
    if (max != RegexNode::kUnlimited && max < min) fail("a repeat count whose end is below its start", start);
  }

  RegexNodePtr parse_atom() {
    const size_t start = pos_;
    const char32_t c = pattern_[pos_++];
    switch (c) {
      case '(': return parse_group(start);
      case '[': return make_set(parse_class(start));
      case '.': return make_set(CodePointSet::of('\n').complement());
      case '^': return make_assert(RegexNode::Assertion::kLineStart);
      case '$': return make_assert(RegexNode::Assertion::kLineEnd);
      case '\\': return parse_escape_atom(start);
      case '*':
      case '+':
      case '?': fail(str("the quantifier '", static_cast<char>(c), "' with nothing before it"), start);
      case '{':
      case ']':
      case '}': fail(str("a bare '", static_cast<char>(c), "'"), start);
      default: return make_literal(c, start);
    }
  }

  RegexNodePtr make_assert(RegexNode::Assertion assertion) const {
    RegexNodePtr node = make_node(Kind::kAssert);
    node->assertion = assertion;
    return node;
  }

  RegexNodePtr make_literal(char32_t c, size_t position) {
    literal_ = c;
    return make_set(cased(CodePointSet::of(c), position));
  }

  CodePointSet cased(CodePointSet set, size_t position) const {
    if (!ignore_case_) return set;
    if (set.intersects(CodePointSet(unicode::kMultipleFoldCharacters))) {
      fail("a case-insensitive match of a character that folds into several", position);
    }
    return with_other_case(set);
  }

  RegexNodePtr parse_group(size_t start) {
    Kind kind = Kind::kConcat;
    bool negated = false;
    const bool outer_case = ignore_case_;
    if (skip(U"?=")) {
      kind = Kind::kLook;
    } else if (skip(U"?!")) {
      kind = Kind::kLook;
      negated = true;
    } else if (skip(U"?>")) {
      kind = Kind::kAtomic;
    } else if (skip(U"?i:")) {
      ignore_case_ = true;
    } else if (skip(U"?-i:")) {
      ignore_case_ = false;
    } else if (skip(U"?<=") || skip(U"?<!")) {
      fail("a lookbehind", start);
    } else if (peek() == '?' && !skip(U"?:")) {
      std::string name;
      for (size_t i = pos_; i < pattern_.size() && i < pos_ + 3; ++i) append_utf8(pattern_[i], name);
      fail(str("the group '(", name, "...'"), start);
    }
    RegexNodePtr body = parse_alternatives();
    if (!skip(U")")) fail("'(' without ')'", start);
    ignore_case_ = outer_case;
    literal_ = 0;
    if (kind == Kind::kConcat) return body;
    RegexNodePtr node = make_node(kind);
    node->negated = negated;
    node->children.push_back(std::move(body));
    return node;
  }

  // Reads \p{..}, \s and the like after a backslash; false when it is something else.
  bool parse_class_escape(CodePointSet& out, size_t start) {
    const char32_t c = peek();
    bool negated = false;
    switch (c) {
      case 's':
      case 'S': out = CodePointSet(unicode::kRegexSpace), negated = c == 'S'; break;
      case 'w':
      case 'W': out = CodePointSet(unicode::kRegexWord), negated = c == 'W'; break;
      case 'd':
      case 'D': CodePointSet::from_category_name("Nd", out), negated = c == 'D'; break;
      case 'p':
      case 'P': {
        ++pos_;
        if (!skip(U"{")) fail("\\p without braces", start);
        negated = c == 'P';
        if (skip(U"^")) negated = !negated;
        std::string name;
        while (!at_end() && peek() != '}') append_utf8(pattern_[pos_++], name);
        if (at_end() || !CodePointSet::from_category_name(name, out))
          fail(str("the property '", name, "'"), start);
        break;
      }
      default: return false;
    }
    ++pos_;
    if (negated) out = out.complement();
    return true;
  }

  RegexNodePtr parse_escape_atom(size_t start) {
    CodePointSet set;
    if (parse_class_escape(set, start)) return make_set(cased(set, start));
    switch (peek()) {
      case 'A': return ++pos_, make_assert(RegexNode::Assertion::kTextStart);
      case 'z': return ++pos_, make_assert(RegexNode::Assertion::kTextEnd);
      case 'Z': return ++pos_, make_assert(RegexNode::Assertion::kTextEndOrFinalNewline);
      case 'b': return ++pos_, make_assert(RegexNode::Assertion::kWordEdge);
      case 'B': return ++pos_, make_assert(RegexNode::Assertion::kNoWordEdge);
      default: return make_literal(parse_escaped_character(start), start);
    }
  }

  char32_t parse_escaped_character(size_t start) {
    if (at_end()) fail("a backslash at the end", start);
    const char32_t c = pattern_[pos_++];
    switch (c) {
      case 't': return '\t';
      case 'n': return '\n';
      case 'r': return '\r';
      case 'f': return '\f';
      case 'v': return '\v';
      case 'a': return '\a';
      case 'e': return 0x1B;
      case 'u': return parse_hex(4, 4, start);
      case 'x':
        if (skip(U"{")) {
          const char32_t value = parse_hex(1, 6, start);
          if (!skip(U"}")) fail("\\x{ without '}'", start);
          return value;
        } else if (const char32_t value = parse_hex(2, 2, start); value < 0x80) {
          return value;
        }
        fail("\\x of a byte that is no character by itself", start);
      default:
        if (c < 0x80 &&
            (is_digit(c) || hex_value(c) >= 0 || (simple_fold(c) >= 'a' && simple_fold(c) <= 'z'))) {
          fail(str("the escape '\\", static_cast<char>(c), "'"), start);
        }
        return c;
    }
  }

  char32_t parse_hex(int min_digits, int max_digits, size_t start) {
    char32_t value = 0;
    int digits = 0;
    for (; digits < max_digits && hex_value(peek()) >= 0; ++digits) {
      value = value * 16 + static_cast<char32_t>(hex_value(pattern_[pos_++]));
    }
    if (digits < min_digits || value > unicode::kMaxCodePoint) fail("a malformed hexadecimal escape", start);
    return value;
  }

  // After '['.
  CodePointSet parse_class(size_t start) {
    if (++nesting_ > kMaxNesting) fail("nesting deeper than 100", start);
    const bool negated = skip(U"^");
    if (peek() == ']') fail("']' at the start of a character class", pos_);
    CodePointSet set;
    std::vector<CodePointRange> ranges;
    while (peek() != ']' || at_end()) {
      if (at_end()) fail("'[' without ']'", start);
      const size_t position = pos_;
      if (skip(U"&&")) fail("'&&' in a character class", position);
      if (skip(U"[:")) fail("a POSIX bracket", position);
      CodePointSet part;
      bool is_set = false;
      char32_t first = 0;
      if (skip(U"[")) {
        part = parse_class(position);
        is_set = true;
      } else if (skip(U"\\")) {
        is_set = parse_class_escape(part, position);
        if (!is_set) first = parse_escaped_character(position);
      } else {
        first = pattern_[pos_++];
      }
      char32_t last = first;
      if (peek() == '-' && peek(1) != ']' && pos_ + 1 < pattern_.size()) {
        if (is_set || peek(1) == '[') fail("a range that starts or ends in a set", position);
        ++pos_;
        last = pattern_[pos_++];
        if (last == '\\') {
          CodePointSet ignored;
          if (parse_class_escape(ignored, position)) fail("a range that starts or ends in a set", position);
          last = parse_escaped_character(position);
        }
        if (last < first) fail("a range whose end is below its start", position);
      }
      if (is_set) {
        set = set.united_with(part);
      } else {
        ranges.push_back({first, last});
      }
    }
    ++pos_;
    --nesting_;
    set = cased(set.united_with(CodePointSet(ranges)), start);
    return negated ? set.complement() : set;
  }

  std::u32string pattern_;
  size_t pos_ = 0;
  int nesting_ = 0;
  bool ignore_case_ = false;
  char32_t literal_ = 0;  // what parse_atom read, when that was one plain character
};

}  // namespace

bool RegexNode::is_nullable() const {
  const auto nullable = [](const RegexNodePtr& child) { return child->is_nullable(); };
  switch (kind) {
    case Kind::kSet: return false;
    case Kind::kConcat: return std::all_of(children.begin(), children.end(), nullable);
    case Kind::kAlternate: return std::any_of(children.begin(), children.end(), nullable);
    case Kind::kRepeat: return min == 0 || children[0]->is_nullable();
    case Kind::kAtomic: return children[0]->is_nullable();
    default: return true;
  }
}

RegexNodePtr parse_regex(std::string_view pattern) { return RegexParser(pattern).parse(); }

}  // namespace quire::text
