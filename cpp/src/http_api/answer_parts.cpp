#include "http_api/answer_parts.h"

#include <algorithm>
#include <utility>

namespace quire {

using Kind = AnswerPart::Kind;

void AnswerParts::add(const ChatDelta& delta, Listener& listener) {
  if (!delta.reasoning.empty()) add_text(Kind::kReasoning, delta.reasoning, listener);
  // What a call still lacks comes before what follows it.
  size_t begun = 0;
  if (const AnswerPart* open = open_part(Kind::kCall)) {
    for (; begun < delta.tool_calls.size() && delta.tool_calls[begun].index <= open->call_index; ++begun)
      add_call(delta.tool_calls[begun], listener);
  }
  if (!delta.content.empty()) add_text(Kind::kText, delta.content, listener);
  for (; begun < delta.tool_calls.size(); ++begun) add_call(delta.tool_calls[begun], listener);
}

void AnswerParts::finish(Listener& listener) {
  if (std::exchange(is_open_, false)) listener.on_end(parts_.back());
}

bool AnswerParts::has_calls() const {
  return std::any_of(parts_.begin(), parts_.end(),
                     [](const AnswerPart& part) { return part.kind == Kind::kCall; });
}

AnswerPart* AnswerParts::open_part(Kind kind) {
  return is_open_ && parts_.back().kind == kind ? &parts_.back() : nullptr;
}

AnswerPart& AnswerParts::begin(AnswerPart part, Listener& listener) {
  finish(listener);
  blanks_.clear();
  part.index = parts_.size();
  parts_.push_back(std::move(part));
  is_open_ = true;
  listener.on_begin(parts_.back());
  return parts_.back();
}

void AnswerParts::add_text(Kind kind, const std::string& piece, Listener& listener) {
  AnswerPart* part = open_part(kind);
  std::string text = piece;
  if (part == nullptr) {
    // Blanks between parts are no part: these APIs take back no empty ones.
    blanks_ += piece;
    if (blanks_.find_first_not_of(" \t\r\n") == std::string::npos) return;
    text = std::exchange(blanks_, "");
    AnswerPart begun;
    begun.kind = kind;
    part = &begin(std::move(begun), listener);
  }
  part->text += text;
  listener.on_text(*part, text);
}

void AnswerParts::add_call(const ToolCallDelta& call, Listener& listener) {
  const auto found = std::find_if(parts_.begin(), parts_.end(), [&](const AnswerPart& part) {
    return part.kind == Kind::kCall && part.call_index == call.index;
  });
  AnswerPart* part = found != parts_.end() ? &*found : nullptr;
  if (part == nullptr) {
    AnswerPart begun;
    begun.kind = Kind::kCall;
    begun.id = call.id;
    begun.name = call.name;
    begun.call_index = call.index;
    part = &begin(std::move(begun), listener);
  }
  if (call.arguments.empty()) return;
  part->text += call.arguments;
  listener.on_text(*part, call.arguments);
}

}  // namespace quire
