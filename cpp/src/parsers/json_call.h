// Calls that are written in JSON: arguments alone, and {"name": ..., "arguments": {...}}.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "parsers/chat_output.h"
#include "parsers/json_scanner.h"
#include "parsers/json_string_decoder.h"

namespace quire::parsers {

enum class Progress {
  kMore,
  kDone,   // the byte was the last one
  kEnded,  // it was complete before the byte, which was not taken
  kBad,    // the byte does not belong to it, and was not taken
  kOther,  // it is valid, the byte with it, but is not what was looked for
};

// The arguments of the call that was begun last: an object, passed on as it comes.
class ArgumentsReader {
 public:
  // The first byte must be the object's.
  Progress put(char byte, ChatOutput& out);
  bool in_string() const { return scanner_.in_string(); }
  bool is_done() const { return scanner_.done(); }

 private:
  JsonScanner scanner_;
};

// An object with "name" and "arguments" (or "parameters"), in any order. The call is begun when its name is
// known and its arguments begin; what comes before is held back. Arguments that follow the name may be a
// string that holds the object.
class CallObjectReader {
 public:
  // `strict`: an object with other members than calls have is none. For formats in which any object in the
  // text might be a call.
  explicit CallObjectReader(bool strict) : strict_(strict) {}

  // The first byte must be the object's. kOther: it is an object of another kind, whose rest `skip` reads.
  Progress put(char byte, ChatOutput& out);
  Progress skip(char byte);
  bool in_string() const { return scanner_.in_string(); }
  bool is_done() const { return scanner_.done(); }
  bool has_begun() const { return begun_; }
  // What was read, as long as no call has begun.
  std::string_view held() const { return held_; }
  // The id that calls get; empty: one is made.
  void set_id(std::string id) { id_ = std::move(id); }

 private:
  void on_head(JsonScanner::Event event, char byte, ChatOutput& out);
  bool on_string(char byte, bool was_in_string);
  void begin(ChatOutput& out);
  Progress on_string_arguments(char byte, JsonScanner::Event event, ChatOutput& out);

  bool strict_;
  JsonScanner scanner_;
  std::string held_;
  std::string id_;
  std::string key_;     // the member at hand, as it is written
  std::string string_;  // the key or the name that is being read
  std::string name_;
  size_t arguments_begin_ = 0, arguments_end_ = 0;  // in `held_`, where they come before the name
  bool reading_arguments_ = false;
  std::optional<JsonStringDecoder> decoder_;  // within arguments that are a string
  std::optional<ArgumentsReader> decoded_;    // what it holds
  bool begun_ = false;
};

}  // namespace quire::parsers
