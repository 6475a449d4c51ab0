// The formats whose calls are JSON objects with a name and arguments.
#pragma once

#include <string>
#include <vector>

#include "parsers/chat_parser_registry.h"
#include "parsers/structural_tag.h"

namespace quire::parsers {

struct JsonCallsFormat {
  // After one of these stands a call, or an array of calls.
  std::vector<std::string> begins;
  // What ends calls, or joins them, and is no text.
  std::vector<std::string> ends;
  // A call, or an array of calls, may also stand by itself in the text; calls are joined by ; or ,.
  bool bare = false;
  // For calls; null: an id of vLLM's kind.
  std::string (*make_id)() = nullptr;
  CallText text;
};

ToolParser json_calls(JsonCallsFormat format);

}  // namespace quire::parsers
