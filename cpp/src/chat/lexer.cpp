#include "chat/lexer.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "chat/python_strings.h"
#include "quire/error.h"
#include "util/str.h"

namespace quire::chat {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name_start(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

int digit_value(char c) {
  if (is_digit(c)) return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return 99;
}

// Line ends become "\n"; one at the very end goes.
std::string normalize_newlines(std::string_view source) {
  std::string text;
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      text += source[i];
    } else {
      text += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    }
  }
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

// Names are looked up and copied at every turn.
constexpr size_t kMaxNameBytes = 255;

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(normalize_newlines(source)) {}

  std::vector<Token> run() {
    while (pos_ < source_.size()) read_data();
    add(Token::Kind::kEnd, "end of template");
    return std::move(tokens_);
  }

 private:
  std::string_view rest() const { return std::string_view(source_).substr(pos_); }
  char peek(size_t ahead = 0) const { return pos_ + ahead < source_.size() ? source_[pos_ + ahead] : '\0'; }

  // Moves on, counting lines.
  void advance(size_t size) {
    const auto begin = source_.begin() + static_cast<ptrdiff_t>(pos_);
    line_ += static_cast<int>(std::count(begin, begin + static_cast<ptrdiff_t>(size), '\n'));
    pos_ += size;
  }
  bool skip(std::string_view text) {
    if (!rest().starts_with(text)) return false;
    advance(text.size());
    return true;
  }
  void skip_space() { advance(rest().size() - strip(rest(), Side::kLeft).size()); }

  Token& add(Token::Kind kind, std::string_view text) {
    tokens_.push_back({kind, std::string(text), line_, 0, 0});
    return tokens_.back();
  }

  // Text up to the next tag, and the tag.
  void read_data() {
    const size_t begin = pos_;
    size_t tag = begin;
    const auto is_tag = [&] {
      return tag + 1 < source_.size() &&
             std::string_view("{%#").find(source_[tag + 1]) != std::string_view::npos;
    };
    while ((tag = source_.find('{', tag)) != std::string::npos && !is_tag()) ++tag;
    if (tag == std::string::npos) {
      add(Token::Kind::kData, rest());
      advance(source_.size() - pos_);
      return;
    }
    const char type = source_[tag + 1];
    const char sign = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
    add_trimmed_data(std::string_view(source_).substr(begin, tag - begin), sign, type != '{');
    advance(tag - begin + 2);
    if (sign == '-' || sign == '+') advance(1);
    if (type == '#') {
      read_comment();
    } else if (type == '{') {
      add(Token::Kind::kVariableBegin, "{{");
      read_expression("}}", Token::Kind::kVariableEnd);
    } else if (!read_raw()) {
      add(Token::Kind::kBlockBegin, "{%");
      read_expression("%}", Token::Kind::kBlockEnd);
    }
  }

  // "-" strips all white space before the tag. Otherwise a block or comment that stands first in its line
  // takes the space before it along, unless "+" says no.
  void add_trimmed_data(std::string_view text, char sign, bool may_strip_line) {
    if (sign == '-') {
      text = strip(text, Side::kRight);
    } else if (sign != '+' && may_strip_line) {
      const size_t newline = text.rfind('\n');
      const size_t line_start = newline == text.npos ? 0 : newline + 1;
      if ((line_start > 0 || line_starting_) && strip(text.substr(line_start), Side::kLeft).empty()) {
        text = text.substr(0, line_start);
      }
    }
    if (!text.empty()) add(Token::Kind::kData, text);
  }

  // The end of a tag: "-" strips all white space after it; a newline right after a block goes.
  void end_tag(char sign, std::string_view close, bool trims_newline) {
    const size_t begin = pos_;
    if (sign != '\0') advance(1);
    advance(close.size());
    if (sign == '-') {
      skip_space();
    } else if (sign == '\0' && trims_newline) {
      skip("\n");
    }
    line_starting_ = pos_ > begin && source_[pos_ - 1] == '\n';
  }

  void read_comment() {
    const int start_line = line_;
    const size_t close = source_.find("#}", pos_);
    if (close == std::string::npos) fail_at_line(start_line, "'{#' without '#}'");
    const char sign = close > pos_ ? source_[close - 1] : '\0';
    const bool signed_end = sign == '-' || sign == '+';
    advance(close - pos_ - (signed_end ? 1 : 0));
    end_tag(signed_end ? sign : '\0', "#}", true);
  }

  // After "{%": {% raw %}..{% endraw %} as data; false when it is another block.
  bool read_raw() {
    const size_t saved_pos = pos_;
    const int saved_line = line_;
    skip_space();
    if (skip("raw")) {
      skip_space();
      const char sign = peek() == '-' ? '-' : '\0';
      if (rest().substr(sign ? 1 : 0).starts_with("%}")) {
        end_tag(sign, "%}", false);
        read_until_endraw(saved_line);
        return true;
      }
    }
    pos_ = saved_pos;
    line_ = saved_line;
    return false;
  }

  void read_until_endraw(int start_line) {
    const size_t begin = pos_;
    for (size_t tag = source_.find("{%", pos_); tag != std::string::npos; tag = source_.find("{%", tag + 1)) {
      std::string_view after = std::string_view(source_).substr(tag + 2);
      const char sign = after.starts_with('-') || after.starts_with('+') ? after[0] : '\0';
      if (sign) after.remove_prefix(1);
      after = strip(after, Side::kLeft);
      if (!after.starts_with("endraw")) continue;
      after = strip(after.substr(6), Side::kLeft);
      const char end_sign = after.starts_with('-') || after.starts_with('+') ? after[0] : '\0';
      if (!after.substr(end_sign ? 1 : 0).starts_with("%}")) continue;
      add_trimmed_data(std::string_view(source_).substr(begin, tag - begin), sign, true);
      advance(source_.size() - after.size() - pos_);
      end_tag(end_sign, "%}", true);
      return;
    }
    fail_at_line(start_line, "'{% raw %}' without '{% endraw %}'");
  }

  // The tokens of a tag, up to and with its end.
  void read_expression(std::string_view close, Token::Kind close_kind) {
    const int start_line = line_;
    std::string open_brackets;
    for (;;) {
      skip_space();
      if (pos_ >= source_.size()) fail_at_line(start_line, str("a tag without '", close, "'"));
      const char c = peek();
      // Inside brackets "}}" closes two of them.
      const bool may_sign = c == '-' || (c == '+' && close == "%}");
      if (open_brackets.empty() && rest().substr(may_sign ? 1 : 0).starts_with(close)) {
        add(close_kind, close);
        end_tag(may_sign ? c : '\0', close, close == "%}");
        return;
      }
      if (is_digit(c)) {
        read_number();
      } else if (is_name_start(c)) {
        size_t size = 1;
        while (is_name_start(peek(size)) || is_digit(peek(size))) ++size;
        if (size > kMaxNameBytes) fail_at_line(line_, str("a name is longer than ", kMaxNameBytes, " bytes"));
        add(Token::Kind::kName, rest().substr(0, size));
        advance(size);
      } else if (c == '\'' || c == '"') {
        read_string(c);
      } else {
        read_operator(open_brackets);
      }
    }
  }

  void read_operator(std::string& open_brackets) {
    static constexpr std::string_view kOperators[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/",
                                                      "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                                      ">",  "<",  "=",  ".",  ":",  "|",  ",", ";"};
    for (std::string_view op : kOperators) {
      if (!rest().starts_with(op)) continue;
      if (op == "(" || op == "[" || op == "{") open_brackets += op == "(" ? ')' : op == "[" ? ']' : '}';
      if (op == ")" || op == "]" || op == "}") {
        if (open_brackets.empty() || open_brackets.back() != op[0])
          fail_at_line(line_, str("unexpected '", op, "'"));
        open_brackets.pop_back();
      }
      add(Token::Kind::kOperator, op);
      advance(op.size());
      return;
    }
    size_t pos = pos_;
    std::string character;
    append_utf8(decode_utf8(source_, pos), character);
    fail_at_line(line_, str("unexpected character '", character, "'"));
  }

  // Digits, which may have single underscores between them.
  std::string read_digits(int base) {
    std::string digits;
    while (digit_value(peek()) < base || (peek() == '_' && !digits.empty() && digit_value(peek(1)) < base)) {
      if (peek() != '_') digits += peek();
      advance(1);
    }
    return digits;
  }

  void read_number() {
    int base = 10;
    if (peek() == '0') {
      const char prefix = static_cast<char>(peek(1) | 0x20);
      if (prefix == 'x') base = 16;
      if (prefix == 'o') base = 8;
      if (prefix == 'b') base = 2;
    }
    if (base != 10) advance(2);
    std::string digits = read_digits(base);
    bool is_float = false;
    if (base == 10) {
      if (peek() == '.' && is_digit(peek(1))) {
        advance(1);
        digits += '.' + read_digits(10);
        is_float = true;
      }
      const size_t sign = peek(1) == '+' || peek(1) == '-' ? 1 : 0;
      if ((peek() == 'e' || peek() == 'E') && is_digit(peek(1 + sign))) {
        digits += 'e';
        if (sign) digits += peek(1);
        advance(1 + sign);
        digits += read_digits(10);
        is_float = true;
      }
    }
    Token& token = add(is_float ? Token::Kind::kFloat : Token::Kind::kInteger, digits);
    if (is_float) {
      token.real = std::strtod(digits.c_str(), nullptr);
      return;
    }
    const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), token.integer, base);
    const bool leading_zero = base == 10 && digits.size() > 1 && digits[0] == '0' &&
                              digits.find_first_not_of('0') != std::string::npos;
    if (result.ec != std::errc() || leading_zero)
      fail_at_line(line_, str("the number ", digits, " is not supported"));
  }

  void read_string(char mark) {
    const int start_line = line_;
    std::string value;
    size_t pos = pos_ + 1;
    for (;; ++pos) {
      if (pos >= source_.size()) fail_at_line(start_line, "a string without an end");
      if (source_[pos] == mark) break;
      if (source_[pos] != '\\') {
        value += source_[pos];
      } else if (++pos < source_.size()) {
        read_escape(pos, value);
      }
    }
    add(Token::Kind::kString, value);
    advance(pos + 1 - pos_);
  }

  // The escape whose letter is source_[pos], which is moved to its last character.
  void read_escape(size_t& pos, std::string& value) {
    const auto hex = [&](int num_digits) {
      char32_t code = 0;
      for (int i = 0; i < num_digits; ++i) {
        const int digit = pos + 1 < source_.size() ? digit_value(source_[pos + 1]) : 99;
        if (digit >= 16) fail_at_line(line_, "a truncated escape in a string");
        code = code * 16 + static_cast<char32_t>(digit);
        ++pos;
      }
      if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000))
        fail_at_line(line_, "an escape that is no character");
      append_utf8(code, value);
    };
    const char c = source_[pos];
    switch (c) {
      case '\n': return;
      case '\\':
      case '\'':
      case '"': value += c; return;
      case 'a': value += '\a'; return;
      case 'b': value += '\b'; return;
      case 'f': value += '\f'; return;
      case 'n': value += '\n'; return;
      case 'r': value += '\r'; return;
      case 't': value += '\t'; return;
      case 'v': value += '\v'; return;
      case 'x': return hex(2);
      case 'u': return hex(4);
      case 'U': return hex(8);
      case 'N': fail_at_line(line_, "the escape \\N is not supported");
      default: break;
    }
    if (c < '0' || c > '7') {  // an unknown escape stands for itself
      value += '\\';
      value += c;
      return;
    }
    char32_t code = static_cast<char32_t>(c - '0');
    for (int i = 0; i < 2 && pos + 1 < source_.size() && source_[pos + 1] >= '0' && source_[pos + 1] <= '7';
         ++i) {
      code = code * 8 + static_cast<char32_t>(source_[++pos] - '0');
    }
    append_utf8(code, value);
  }

  std::string source_;
  size_t pos_ = 0;
  int line_ = 1;
  bool line_starting_ = true;  // what was read last ended a line
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize_template(std::string_view source) { return Lexer(source).run(); }

void fail_at_line(int line, const std::string& message) {
  throw InvalidArgument(str("chat_template: line ", line, ": ", message));
}

}  // namespace quire::chat
