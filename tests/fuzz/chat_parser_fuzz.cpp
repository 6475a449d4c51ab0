// Any text as an answer, cut in any way. The first line names a parser; any other line stands for one.
// However it is cut, the answer is the same; arguments are the beginning of a JSON object; nothing grows
// beyond the text.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "parsers/json_scanner.h"
#include "quire/chat_parsers.h"
#include "quire/utf8.h"
#include "util/check.h"

namespace {

using quire::ChatDelta;
using quire::ChatFormat;

const char kFuzzTools[] = R"([{"type": "function", "function": {"name": "f", "parameters": {"type": "object",
    "properties": {"s": {"type": "string"}, "i": {"type": "integer"}, "a": {"type": "array"},
                   "u": {"anyOf": [{"type": "number"}, {"type": "boolean"}, {"enum": [null]}]}}}}}])";

using Formats = std::vector<std::pair<std::string, std::shared_ptr<const ChatFormat>>>;

Formats all_formats() {
  Formats formats;
  for (const std::string& name : ChatFormat::tool_parser_names())
    formats.emplace_back(name, ChatFormat::make(name == "openai" ? "openai_gptoss" : "", name));
  for (const std::string& name : ChatFormat::reasoning_parser_names())
    formats.emplace_back("think:" + name, ChatFormat::make(name, name == "openai_gptoss" ? "" : "hermes"));
  return formats;
}

const ChatFormat& format_of(std::string_view line) {
  static const Formats formats = all_formats();
  for (const auto& [name, format] : formats) {
    if (name == line) return *format;
  }
  return *formats[std::hash<std::string_view>{}(line) % formats.size()].second;
}

ChatDelta parse(const ChatFormat& format, const std::vector<std::string_view>& pieces) {
  quire::ChatParserOptions options;
  options.tools_json = kFuzzTools;
  const auto parser = format.parser(options);
  ChatDelta answer;
  for (const std::string_view piece : pieces) quire::join(answer, parser->append(piece));
  quire::join(answer, parser->finish());
  return answer;
}

bool is_json_beginning(const std::string& text) {
  quire::parsers::JsonScanner scanner;
  return std::all_of(text.begin(), text.end(), [&scanner](char byte) {
    return scanner.put(byte) != quire::parsers::JsonScanner::Event::kBad;
  });
}

void check(const ChatDelta& answer, size_t num_bytes) {
  size_t shown = answer.reasoning.size() + answer.content.size();
  for (size_t i = 0; i < answer.tool_calls.size(); ++i) {
    const quire::ToolCallDelta& call = answer.tool_calls[i];
    QUIRE_CHECK(call.index == static_cast<int32_t>(i) && !call.id.empty() && !call.name.empty());
    QUIRE_CHECK(is_json_beginning(call.arguments), call.arguments);
    shown += call.arguments.size();
  }
  QUIRE_CHECK(shown <= 16 * num_bytes + 16, shown, " bytes of ", num_bytes);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t line_end = std::min(input.find('\n'), input.size());
  const ChatFormat& format = format_of(input.substr(0, line_end));
  std::string_view text = input.substr(std::min(line_end + 1, input.size()));
  text = text.substr(0, std::min(quire::find_invalid_utf8(text), text.size()));
  ChatDelta whole = parse(format, {text});
  check(whole, text.size());
  std::mt19937 random(static_cast<unsigned>(size));
  const unsigned mean_bytes = 1 + random() % 8;
  std::vector<std::string_view> pieces;
  size_t from = 0;
  for (size_t to = 1; to <= text.size(); ++to) {
    const bool between = to == text.size() || (static_cast<unsigned char>(text[to]) & 0xC0) != 0x80;
    if (!between || random() % mean_bytes != 0) continue;
    pieces.push_back(text.substr(from, to - from));
    from = to;
  }
  pieces.push_back(text.substr(from));
  ChatDelta cut = parse(format, pieces);
  for (auto* answer : {&whole, &cut}) {
    for (auto& call : answer->tool_calls) call.id.clear();
  }
  QUIRE_CHECK(cut == whole, "the answer depends on how it is cut: ", text);
  return 0;
}
