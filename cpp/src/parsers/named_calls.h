// The formats that write a call's name between markers and its arguments as a JSON object after it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "parsers/chat_parser_registry.h"
#include "parsers/structural_tag.h"

namespace quire::parsers {

struct CallHead {
  std::string name;  // empty: the head is none
  std::string id;    // empty: one is made
};

struct NamedCallsFormat {
  std::string begin;                 // before the head of a call
  std::string arguments_begin;       // after it; empty: the head goes up to the arguments' brace
  std::vector<std::string> dropped;  // further markers, which end what is at hand and are no text
  CallHead (*read_head)(std::string_view head) = nullptr;  // what stands between `begin` and the arguments
  CallText text;
};

// Borrows nothing.
std::unique_ptr<Stage> make_named_calls(const NamedCallsFormat& format, ChatOutput& out);
ToolParser named_calls(NamedCallsFormat format);

}  // namespace quire::parsers
