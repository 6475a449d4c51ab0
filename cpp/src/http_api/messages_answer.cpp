// /v1/messages: answers and errors as Anthropic's Messages API has them.
#include <utility>

#include "http_api/answer_parts.h"
#include "http_api/http_answer.h"
#include "util/str.h"

namespace quire {
namespace {

using Kind = AnswerPart::Kind;

std::string event(const char* type, const OrderedJson& members) {
  OrderedJson data = {{"type", type}};
  data.update(members);
  return str("event: ", type, "\ndata: ", json_text(data), "\n\n");
}

// A call's input is an object. What the model wrote that is none comes as Anthropic's documentation has it
// sent back.
OrderedJson input_json(const std::string& arguments) {
  if (arguments.empty()) return OrderedJson::object();
  if (!try_parse_json(arguments).is_object()) return {{"INVALID_JSON", arguments}};
  return parse_ordered_json(arguments, "arguments");
}

class MessagesAnswer final : public HttpAnswer, private AnswerParts::Listener {
 public:
  explicit MessagesAnswer(HttpAnswerOptions given) : HttpAnswer(std::move(given)), writer_(options().chat) {}

 private:
  std::string write_delta(size_t, const CompletionOutput& delta) override {
    if (!std::exchange(has_begun_, true)) {
      OrderedJson members = OrderedJson::object();
      members["message"] = message(OrderedJson::array(), nullptr, nullptr);
      bytes_ += event("message_start", members);
    }
    add(delta);
    return std::exchange(bytes_, "");
  }

  std::string write_end() override {
    OrderedJson members = OrderedJson::object();
    members["delta"] = {{"stop_reason", stop_reason_}, {"stop_sequence", stop_sequence_}};
    members["usage"] = usage_json();
    return event("message_delta", members) + event("message_stop", OrderedJson::object());
  }

  std::string write_body(const std::vector<RequestOutput>& outputs) override {
    add(outputs.front().outputs.front());
    OrderedJson content = OrderedJson::array();
    for (const AnswerPart& part : parts_.parts()) content.push_back(block_json(part));
    return json_text(message(std::move(content), stop_reason_, stop_sequence_));
  }

  std::string error_body(const HttpError& error) const override {
    return http_error_body(error, HttpRoute::kMessages);
  }
  std::string error_events(const HttpError& error) override {
    return str("event: error\ndata: ", error_body(error), "\n\n");
  }

  void add(const CompletionOutput& output) {
    ChatDelta delta = writer_.read(output.text, output.finished());
    if (!options().body.include_reasoning) delta.reasoning.clear();
    parts_.add(delta, *this);
    if (!output.finished()) return;
    parts_.finish(*this);
    stop_reason_ = stop_reason(output);
    if (stop_reason_ == "stop_sequence") stop_sequence_ = stop_reason_json(output);
  }

  const char* stop_reason(const CompletionOutput& output) const {
    switch (output.finish_reason) {
      case FinishReason::kLength:
        return usage().num_generation_tokens < options().max_tokens ? "model_context_window_exceeded"
                                                                    : "max_tokens";
      case FinishReason::kAbort: return "pause_turn";  // the client may go on with it
      default: break;
    }
    if (parts_.has_calls()) return "tool_use";
    return std::holds_alternative<std::string>(output.stop_reason) ? "stop_sequence" : "end_turn";
  }

  void on_begin(const AnswerPart& part) override {
    if (!options().body.stream) return;
    AnswerPart empty = part;
    empty.text.clear();
    OrderedJson members = {{"index", part.index}};
    members["content_block"] = block_json(empty);
    bytes_ += event("content_block_start", members);
  }
  void on_text(const AnswerPart& part, std::string_view piece) override {
    if (!options().body.stream) return;
    constexpr const char* kDeltas[] = {R"("thinking_delta","thinking":)", R"("text_delta","text":)",
                                       R"("input_json_delta","partial_json":)"};
    bytes_ +=
        str("event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":", part.index,
            ",\"delta\":{\"type\":", kDeltas[static_cast<size_t>(part.kind)], json_string(piece), "}}\n\n");
  }
  void on_end(const AnswerPart& part) override {
    if (options().body.stream) bytes_ += event("content_block_stop", {{"index", part.index}});
  }

  static OrderedJson block_json(const AnswerPart& part) {
    switch (part.kind) {
      // Nothing is signed: whoever sends it back is believed.
      case Kind::kReasoning: return {{"type", "thinking"}, {"thinking", part.text}, {"signature", ""}};
      case Kind::kText: return {{"type", "text"}, {"text", part.text}};
      case Kind::kCall: break;
    }
    OrderedJson json = {{"type", "tool_use"}, {"id", part.id}, {"name", part.name}};
    json["input"] = input_json(part.text);
    return json;
  }

  OrderedJson message(OrderedJson content, const OrderedJson& stop_reason,
                      const OrderedJson& stop_sequence) const {
    OrderedJson json = {{"id", options().info.request_id},
                        {"type", "message"},
                        {"role", "assistant"},
                        {"model", options().model}};
    json["content"] = std::move(content);
    json["stop_reason"] = stop_reason;
    json["stop_sequence"] = stop_sequence;
    json["usage"] = usage_json();
    return json;
  }

  // Cached tokens are counted apart.
  OrderedJson usage_json() const {
    const RequestUsage used = usage();
    OrderedJson json = {{"input_tokens", used.num_prompt_tokens - used.num_cached_tokens},
                        {"cache_creation_input_tokens", 0},
                        {"cache_read_input_tokens", used.num_cached_tokens},
                        {"output_tokens", used.num_generation_tokens}};
    json["output_tokens_details"] = {{"thinking_tokens", used.num_reasoning_tokens}};
    return json;
  }

  ChatMessageWriter writer_;
  AnswerParts parts_;
  std::string bytes_;  // of events, until they are given out
  bool has_begun_ = false;
  OrderedJson stop_reason_, stop_sequence_;
};

}  // namespace

std::unique_ptr<HttpAnswer> make_messages_answer(HttpAnswerOptions options) {
  return std::make_unique<MessagesAnswer>(std::move(options));
}

}  // namespace quire
