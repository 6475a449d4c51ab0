#include "parsers/chat_output.h"

#include <array>
#include <cstddef>
#include <span>
#include <utility>

#include "util/check.h"
#include "util/system_random.h"

namespace quire::parsers {
namespace {

constexpr char kHexDigits[] = "0123456789abcdef";

}  // namespace

void ChatOutput::content(char byte) {
  if (at_edge_) {
    if (is_space(byte) && num_calls_ > 0) return;
    if (is_space(byte) && leading_space_.size() < kMaxHeldBytes) {
      leading_space_ += byte;
      return;
    }
    at_edge_ = false;
    delta_.content += std::exchange(leading_space_, {});
  }
  has_content_ = true;
  delta_.content += byte;
}

void ChatOutput::begin_call(std::string name, std::string id) {
  leading_space_.clear();
  at_edge_ = true;
  ToolCallDelta& call = delta_.tool_calls.emplace_back();
  call.index = num_calls_++;
  call.id = id.empty() ? make_tool_call_id() : std::move(id);
  call.name = std::move(name);
}

ToolCallDelta& ChatOutput::call() {
  QUIRE_DCHECK(num_calls_ > 0, "arguments without a call");
  if (delta_.tool_calls.empty() || delta_.tool_calls.back().index != num_calls_ - 1)
    delta_.tool_calls.emplace_back().index = num_calls_ - 1;
  return delta_.tool_calls.back();
}

void ChatOutput::string_argument(char byte) {
  std::string& text = call().arguments;
  switch (byte) {
    case '"': text += "\\\""; return;
    case '\\': text += "\\\\"; return;
    case '\n': text += "\\n"; return;
    case '\r': text += "\\r"; return;
    case '\t': text += "\\t"; return;
    default: break;
  }
  const auto code = static_cast<unsigned char>(byte);
  if (code >= 0x20) {
    text += byte;
    return;
  }
  text += "\\u00";
  text += kHexDigits[code >> 4];
  text += kHexDigits[code & 15];
}

void ChatOutput::finish() {
  if (num_calls_ == 0) delta_.content += leading_space_;
  leading_space_.clear();
}

ChatDelta ChatOutput::take() {
  has_reasoning_ = has_reasoning();
  return std::exchange(delta_, {});
}

std::string make_tool_call_id() {
  std::array<std::byte, 16> bytes;
  fill_from_system(bytes);
  std::string id = "chatcmpl-tool-";
  for (const std::byte byte : bytes) {
    id += kHexDigits[std::to_integer<int>(byte >> 4)];
    id += kHexDigits[std::to_integer<int>(byte & std::byte{15})];
  }
  return id;
}

std::string make_mistral_tool_call_id() {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
  std::array<std::byte, 9> bytes;
  fill_from_system(bytes);
  std::string id;
  for (const std::byte byte : bytes) id += kDigits[std::to_integer<size_t>(byte) % kDigits.size()];
  return id;
}

}  // namespace quire::parsers
