// Answers as tests expect them.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "parsers/parse_every_way.h"

namespace quire {

inline ChatDelta said(std::string content, std::string reasoning = "") {
  ChatDelta answer;
  answer.content = std::move(content);
  answer.reasoning = std::move(reasoning);
  return answer;
}

// Calls by name and arguments.
inline ChatDelta called(const std::vector<std::pair<std::string, std::string>>& calls,
                        std::string content = "", std::string reasoning = "") {
  ChatDelta answer = said(std::move(content), std::move(reasoning));
  for (const auto& [name, arguments] : calls) {
    ToolCallDelta& call = answer.tool_calls.emplace_back();
    call.index = static_cast<int32_t>(answer.tool_calls.size()) - 1;
    call.name = name;
    call.arguments = arguments;
  }
  return answer;
}

inline void PrintTo(const ChatDelta& answer, std::ostream* out) {
  *out << "{reasoning: '" << answer.reasoning << "', content: '" << answer.content << "'";
  for (const ToolCallDelta& call : answer.tool_calls)
    *out << ", " << call.index << ": " << call.name << "(" << call.arguments << ")";
  *out << "}";
}

}  // namespace quire
