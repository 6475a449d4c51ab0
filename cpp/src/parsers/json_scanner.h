// JSON as it comes, byte by byte: whether it is still the beginning of a document, and where in it we are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace quire::parsers {

// Reads one object, nested at most kMaxJsonDepth deep. Control characters are allowed within strings, where
// models write them; escape them to have JSON.
class JsonScanner {
 public:
  enum class Event {
    kNone,
    kOpen,       // the byte opens an object or an array
    kClose,      // the byte closes one
    kStringEnd,  // the byte closes a string: a key, or a value
    kBad,        // the byte cannot stand here; nothing has changed
  };

  // Not to be called when done.
  Event put(char byte);

  // Objects and arrays that are open.
  size_t depth() const { return open_.size(); }
  bool in_string() const { return state_ >= State::kString && state_ <= State::kHex; }
  // The string at hand, or the last one, is a key.
  bool in_key() const { return in_key_; }
  // The next byte that is no white space begins a value.
  bool expects_value() const { return state_ == State::kValue || state_ == State::kFirstElement; }
  bool done() const { return state_ == State::kDone; }

 private:
  enum class State : uint8_t {
    kStart,
    kFirstKey,
    kKey,
    kColon,
    kValue,
    kFirstElement,
    kAfterValue,
    kString,
    kEscape,
    kHex,
    kLiteral,
    kMinus,
    kZero,
    kInteger,
    kPoint,
    kFraction,
    kExponent,
    kExponentSign,
    kExponentDigits,
    kDone,
  };

  Event begin_value(char byte);
  Event after_value(char byte);
  Event open(bool is_object);
  Event close();
  Event number(char byte);

  State state_ = State::kStart;
  bool in_key_ = false;
  uint8_t hex_left_ = 0;
  const char* literal_left_ = "";
  std::vector<bool> open_;  // is an object
};

}  // namespace quire::parsers
