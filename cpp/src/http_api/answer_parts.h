// An answer as the parts that it is made of, one after the other: what Anthropic's API calls content blocks
// and OpenAI's Responses output items.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "quire/chat_parsers.h"

namespace quire {

struct AnswerPart {
  enum class Kind : uint8_t { kReasoning = 0, kText = 1, kCall = 2 };
  Kind kind = Kind::kText;
  size_t index = 0;      // among the parts
  std::string text;      // of a call: its arguments
  std::string id, name;  // of a call
  int32_t call_index = 0;
};

// Not thread-safe.
class AnswerParts {
 public:
  // Who is told, in order, of what is new.
  class Listener {
   public:
    virtual ~Listener() = default;
    virtual void on_begin(const AnswerPart& part) = 0;
    virtual void on_text(const AnswerPart& part, std::string_view piece) = 0;
    virtual void on_end(const AnswerPart& part) = 0;
  };

  void add(const ChatDelta& delta, Listener& listener);
  // Ends the part that is open.
  void finish(Listener& listener);

  const std::vector<AnswerPart>& parts() const { return parts_; }
  bool has_calls() const;

 private:
  AnswerPart* open_part(AnswerPart::Kind kind);
  AnswerPart& begin(AnswerPart part, Listener& listener);
  void add_text(AnswerPart::Kind kind, const std::string& piece, Listener& listener);
  void add_call(const ToolCallDelta& call, Listener& listener);

  std::vector<AnswerPart> parts_;
  bool is_open_ = false;  // the last of them
  std::string blanks_;    // before a text, of which there may be none
};

}  // namespace quire
