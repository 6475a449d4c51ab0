#include "parsers/json_scanner.h"

#include "formats/json.h"
#include "parsers/stage.h"

namespace quire::parsers {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_hex(char c) { return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }

}  // namespace

JsonScanner::Event JsonScanner::open(bool is_object) {
  if (open_.size() >= static_cast<size_t>(kMaxJsonDepth)) return Event::kBad;
  open_.push_back(is_object);
  state_ = is_object ? State::kFirstKey : State::kFirstElement;
  return Event::kOpen;
}

JsonScanner::Event JsonScanner::close() {
  open_.pop_back();
  state_ = open_.empty() ? State::kDone : State::kAfterValue;
  return Event::kClose;
}

JsonScanner::Event JsonScanner::begin_value(char byte) {
  switch (byte) {
    case '{': return open(true);
    case '[': return open(false);
    case '"':
      in_key_ = false;
      state_ = State::kString;
      return Event::kNone;
    case 't': literal_left_ = "rue"; break;
    case 'f': literal_left_ = "alse"; break;
    case 'n': literal_left_ = "ull"; break;
    case '-': state_ = State::kMinus; return Event::kNone;
    case '0': state_ = State::kZero; return Event::kNone;
    default:
      if (!is_digit(byte)) return Event::kBad;
      state_ = State::kInteger;
      return Event::kNone;
  }
  state_ = State::kLiteral;
  return Event::kNone;
}

JsonScanner::Event JsonScanner::after_value(char byte) {
  if (is_space(byte)) {
    state_ = State::kAfterValue;
    return Event::kNone;
  }
  if (byte == ',') {
    state_ = open_.back() ? State::kKey : State::kValue;
    return Event::kNone;
  }
  return byte == (open_.back() ? '}' : ']') ? close() : Event::kBad;
}

// Within a number: what may follow, or else what follows it.
JsonScanner::Event JsonScanner::number(char byte) {
  const auto go = [this](State next) {
    state_ = next;
    return Event::kNone;
  };
  switch (state_) {
    case State::kMinus:
      if (!is_digit(byte)) return Event::kBad;
      return go(byte == '0' ? State::kZero : State::kInteger);
    case State::kZero:
    case State::kInteger:
      if (is_digit(byte)) return state_ == State::kInteger ? Event::kNone : Event::kBad;
      if (byte == '.') return go(State::kPoint);
      break;
    case State::kPoint: return is_digit(byte) ? go(State::kFraction) : Event::kBad;
    case State::kFraction:
      if (is_digit(byte)) return Event::kNone;
      break;
    case State::kExponent:
      if (byte == '+' || byte == '-') return go(State::kExponentSign);
      [[fallthrough]];
    case State::kExponentSign: return is_digit(byte) ? go(State::kExponentDigits) : Event::kBad;
    default:  // digits of an exponent
      return is_digit(byte) ? Event::kNone : after_value(byte);
  }
  return byte == 'e' || byte == 'E' ? go(State::kExponent) : after_value(byte);
}

JsonScanner::Event JsonScanner::put(char byte) {
  switch (state_) {
    case State::kString:
      if (byte == '\\') {
        state_ = State::kEscape;
      } else if (byte == '"') {
        state_ = in_key_ ? State::kColon : State::kAfterValue;
        return Event::kStringEnd;
      }
      return Event::kNone;
    case State::kEscape:
      if (byte == 'u') {
        hex_left_ = 4;
        state_ = State::kHex;
        return Event::kNone;
      }
      if (std::string_view("\"\\/bfnrt").find(byte) == std::string_view::npos) return Event::kBad;
      state_ = State::kString;
      return Event::kNone;
    case State::kHex:
      if (!is_hex(byte)) return Event::kBad;
      if (--hex_left_ == 0) state_ = State::kString;
      return Event::kNone;
    case State::kLiteral:
      if (byte != *literal_left_) return Event::kBad;
      if (*++literal_left_ == '\0') state_ = State::kAfterValue;
      return Event::kNone;
    case State::kMinus:
    case State::kZero:
    case State::kInteger:
    case State::kPoint:
    case State::kFraction:
    case State::kExponent:
    case State::kExponentSign:
    case State::kExponentDigits: return number(byte);
    default: break;
  }
  if (is_space(byte)) return Event::kNone;
  switch (state_) {
    case State::kStart: return byte == '{' ? open(true) : Event::kBad;
    case State::kFirstKey:
      if (byte == '}') return close();
      [[fallthrough]];
    case State::kKey:
      if (byte != '"') return Event::kBad;
      in_key_ = true;
      state_ = State::kString;
      return Event::kNone;
    case State::kColon:
      if (byte != ':') return Event::kBad;
      state_ = State::kValue;
      return Event::kNone;
    case State::kFirstElement:
      if (byte == ']') return close();
      [[fallthrough]];
    case State::kValue: return begin_value(byte);
    case State::kAfterValue: return after_value(byte);
    default: return Event::kBad;  // done
  }
}

}  // namespace quire::parsers
