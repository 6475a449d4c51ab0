// Answers as assistant's messages.
#include <utility>

#include "formats/json.h"
#include "quire/chat.h"

namespace quire {
namespace {

std::string written(const OrderedJson& json) {
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

// With `index` as a delta has it; id and name where there are any.
OrderedJson call_json(const ToolCallDelta& call, bool index) {
  OrderedJson json = OrderedJson::object();
  if (index) json["index"] = call.index;
  if (!call.id.empty()) json["id"] = call.id;
  if (!call.id.empty()) json["type"] = "function";
  OrderedJson& function = json["function"];
  if (!call.name.empty()) function["name"] = call.name;
  function["arguments"] = call.arguments;
  return json;
}

}  // namespace

struct ChatMessageWriter::Impl {
  explicit Impl(const ChatAnswerOptions& options)
      : format(options.format ? options.format : ChatFormat::make("", "")),
        parser(format->parser(options.parser)),
        parallel_tool_calls(options.parallel_tool_calls),
        is_named_choice(options.is_named_choice) {}

  ChatDelta read(std::string_view text, bool finished) {
    ChatDelta delta = parser->append(text);
    if (finished) join(delta, parser->finish());
    // vLLM's: calls after the first are dropped.
    if (!parallel_tool_calls)
      std::erase_if(delta.tool_calls, [](const auto& call) { return call.index > 0; });
    has_calls = has_calls || !delta.tool_calls.empty();
    return delta;
  }

  std::shared_ptr<const ChatFormat> format;
  std::unique_ptr<ChatParser> parser;
  bool parallel_tool_calls;
  bool is_named_choice;
  bool has_role = false;
  bool has_calls = false;
};

ChatMessageWriter::ChatMessageWriter(const ChatAnswerOptions& options)
    : impl_(std::make_unique<Impl>(options)) {}
ChatMessageWriter::~ChatMessageWriter() = default;
ChatMessageWriter::ChatMessageWriter(ChatMessageWriter&&) noexcept = default;
ChatMessageWriter& ChatMessageWriter::operator=(ChatMessageWriter&&) noexcept = default;

ChatDelta ChatMessageWriter::read(std::string_view text, bool finished) {
  return impl_->read(text, finished);
}

std::string ChatMessageWriter::delta(std::string_view text, bool finished) {
  const ChatDelta delta = impl_->read(text, finished);
  OrderedJson json = OrderedJson::object();
  if (delta.empty() && (impl_->has_role || !finished)) return "{}";
  if (!std::exchange(impl_->has_role, true)) json["role"] = "assistant";
  if (!delta.reasoning.empty()) json["reasoning"] = delta.reasoning;
  if (!delta.content.empty()) json["content"] = delta.content;
  for (const ToolCallDelta& call : delta.tool_calls)
    json["tool_calls"].push_back(call_json(call, /*index=*/true));
  return written(json);
}

std::string ChatMessageWriter::message(std::string_view text) {
  const ChatDelta answer = impl_->read(text, /*finished=*/true);
  OrderedJson json = {{"role", "assistant"}};
  if (!answer.reasoning.empty()) json["reasoning"] = answer.reasoning;
  json["content"] = answer.content;
  if (answer.content.empty() && !answer.tool_calls.empty()) json["content"] = nullptr;
  for (const ToolCallDelta& call : answer.tool_calls)
    json["tool_calls"].push_back(call_json(call, /*index=*/false));
  return written(json);
}

const char* ChatMessageWriter::finish_reason(FinishReason reason) const {
  const bool is_calls = reason == FinishReason::kStop && impl_->has_calls && !impl_->is_named_choice;
  return is_calls ? "tool_calls" : finish_reason_name(reason);
}

}  // namespace quire
