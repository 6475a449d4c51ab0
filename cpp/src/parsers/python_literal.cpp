#include "parsers/python_literal.h"

#include <charconv>
#include <cstddef>
#include <string_view>
#include <utility>

#include "formats/json.h"
#include "util/utf8.h"

namespace quire::parsers {
namespace {

constexpr size_t kMaxWordBytes = 512;

bool is_decimal(char c) { return c >= '0' && c <= '9'; }
bool is_word(char c) {
  return is_decimal(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '.';
}

int hex_value(char c) {
  if (is_decimal(c)) return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

// As JSON writes it, or nothing.
std::string number_to_json(std::string_view word) {
  std::string number;
  if (word.starts_with('-')) number = "-";
  if (word.starts_with('-') || word.starts_with('+')) word.remove_prefix(1);
  const auto base_of = [](char c) { return c == 'x' || c == 'X' ? 16 : c == 'o' || c == 'O' ? 8 : 2; };
  if (word.size() > 2 && word[0] == '0' && std::string_view("xXoObB").find(word[1]) != word.npos) {
    uint64_t value = 0;
    const char* end = word.data() + word.size();
    const auto [at, error] = std::from_chars(word.data() + 2, end, value, base_of(word[1]));
    return error == std::errc() && at == end ? number + std::to_string(value) : "";
  }
  for (size_t i = 0; i < word.size(); ++i) {
    if (word[i] == '_' && i > 0 && is_decimal(word[i - 1])) continue;
    const bool lacks_digit = word[i] == '.' && (i == 0 || !is_decimal(word[i - 1]));
    if (lacks_digit) number += '0';
    number += word[i];
    if (word[i] == '.' && (i + 1 == word.size() || !is_decimal(word[i + 1]))) number += '0';
  }
  const Json value = try_parse_json(number);
  return value.is_number() ? number : "";
}

std::string word_to_json(std::string_view word) {
  if (word == "True" || word == "true") return "true";
  if (word == "False" || word == "false") return "false";
  if (word == "None" || word == "null") return "null";
  return number_to_json(word);
}

}  // namespace

void PythonLiteral::begin_element(ChatOutput& out) {
  if (std::exchange(comma_, false)) out.arguments(", ");
}

Progress PythonLiteral::end_value() {
  state_ = open_.empty() ? State::kDone : State::kAfterValue;
  return open_.empty() ? Progress::kDone : Progress::kMore;
}

Progress PythonLiteral::end_string(ChatOutput& out) {
  out.arguments('"');
  if (!in_key_) return end_value();
  state_ = State::kColon;
  return Progress::kMore;
}

Progress PythonLiteral::on_value(char byte, ChatOutput& out) {
  if (is_space(byte)) return Progress::kMore;
  if (byte == '[' || byte == '{') {
    if (open_.size() + 1 >= static_cast<size_t>(kMaxJsonDepth)) return Progress::kBad;
    begin_element(out);
    out.arguments(byte);
    open_.push_back(byte == '{');
    state_ = State::kFirst;
  } else if (byte == '"' || byte == '\'') {
    begin_element(out);
    out.arguments('"');
    quote_ = byte;
    triple_ = false;
    state_ = State::kStringBegin;
  } else if (!in_key_ && (is_word(byte) || byte == '-' || byte == '+')) {
    word_ = byte;
    state_ = State::kWord;
  } else {
    return Progress::kBad;
  }
  return Progress::kMore;
}

Progress PythonLiteral::on_first(char byte, ChatOutput& out) {
  if (is_space(byte)) return Progress::kMore;
  if (byte == (open_.back() ? '}' : ']')) return on_after_value(byte, out);
  in_key_ = open_.back();
  if (in_key_ && byte != '"' && byte != '\'') return Progress::kBad;
  return on_value(byte, out);
}

Progress PythonLiteral::on_after_value(char byte, ChatOutput& out) {
  if (is_space(byte)) return Progress::kMore;
  if (byte == ',') {
    comma_ = true;
    state_ = State::kFirst;
    return Progress::kMore;
  }
  if (byte != (open_.back() ? '}' : ']')) return Progress::kBad;
  comma_ = false;  // the last one is none of JSON's
  out.arguments(byte);
  open_.pop_back();
  return end_value();
}

Progress PythonLiteral::on_word(char byte, ChatOutput& out) {
  const bool is_exponent = (byte == '+' || byte == '-') && (word_.back() == 'e' || word_.back() == 'E');
  if (is_word(byte) || is_exponent) {
    word_ += byte;
    return word_.size() <= kMaxWordBytes ? Progress::kMore : Progress::kBad;
  }
  const std::string json = word_to_json(word_);
  if (json.empty()) return Progress::kBad;
  begin_element(out);
  out.arguments(json);
  if (end_value() == Progress::kDone) return Progress::kEnded;
  return on_after_value(byte, out);
}

Progress PythonLiteral::on_string(char byte, ChatOutput& out) {
  if (byte == quote_) {
    if (++quotes_ == (triple_ ? 3 : 1)) return end_string(out);
    return Progress::kMore;
  }
  while (quotes_ > 0) {
    out.string_argument(quote_);
    --quotes_;
  }
  if (byte == '\\') {
    state_ = State::kEscape;
  } else {
    out.string_argument(byte);
  }
  return Progress::kMore;
}

Progress PythonLiteral::on_escape(char byte, ChatOutput& out) {
  constexpr std::string_view kLetters = "ntrbfav\\'\"", kBytes = "\n\t\r\b\f\a\v\\'\"";
  state_ = State::kString;
  if (const size_t at = kLetters.find(byte); at != kLetters.npos) {
    out.string_argument(kBytes[at]);
  } else if (byte == 'x' || byte == 'u' || byte == 'U') {
    digits_left_ = byte == 'x' ? 2 : byte == 'u' ? 4 : 8;
    code_point_ = 0;
    state_ = State::kHex;
  } else if (byte >= '0' && byte <= '7') {
    digits_left_ = 2;
    code_point_ = static_cast<uint32_t>(byte - '0');
    state_ = State::kOctal;
  } else if (byte != '\n') {  // which would join two lines
    out.string_argument('\\');
    out.string_argument(byte);
  }
  return Progress::kMore;
}

bool PythonLiteral::add_code_point(ChatOutput& out) {
  state_ = State::kString;
  if (code_point_ > 0x10FFFF) return false;
  if (code_point_ >= 0xD800 && code_point_ < 0xE000) {  // halves, of which JSON makes a pair
    constexpr char kHexDigits[] = "0123456789abcdef";
    out.arguments("\\u");
    for (int shift = 12; shift >= 0; shift -= 4) out.arguments(kHexDigits[code_point_ >> shift & 15]);
    return true;
  }
  std::string text;
  append_utf8(code_point_, text);
  for (const char byte : text) out.string_argument(byte);
  return true;
}

Progress PythonLiteral::put(char byte, ChatOutput& out) {
  switch (state_) {
    case State::kValue: return on_value(byte, out);
    case State::kFirst: return on_first(byte, out);
    case State::kColon:
      if (is_space(byte)) return Progress::kMore;
      if (byte != ':') return Progress::kBad;
      out.arguments(": ");
      in_key_ = false;
      state_ = State::kValue;
      return Progress::kMore;
    case State::kAfterValue: return on_after_value(byte, out);
    case State::kWord: return on_word(byte, out);
    case State::kStringBegin:
      quotes_ = 0;
      state_ = byte == quote_ ? State::kQuotes : State::kString;
      return byte == quote_ ? Progress::kMore : on_string(byte, out);
    case State::kQuotes:
      if (byte == quote_) {
        triple_ = true;
        state_ = State::kString;
        return Progress::kMore;
      }
      if (end_string(out) == Progress::kDone) return Progress::kEnded;
      return put(byte, out);
    case State::kString: return on_string(byte, out);
    case State::kEscape: return on_escape(byte, out);
    case State::kHex: {
      const int digit = hex_value(byte);
      if (digit < 0) return Progress::kBad;
      code_point_ = code_point_ << 4 | static_cast<uint32_t>(digit);
      return --digits_left_ > 0 || add_code_point(out) ? Progress::kMore : Progress::kBad;
    }
    case State::kOctal:
      if (byte >= '0' && byte <= '7') {
        code_point_ = code_point_ << 3 | static_cast<uint32_t>(byte - '0');
        if (--digits_left_ == 0) add_code_point(out);
        return Progress::kMore;
      }
      add_code_point(out);
      return on_string(byte, out);
    case State::kDone: break;
  }
  return Progress::kBad;
}

}  // namespace quire::parsers
