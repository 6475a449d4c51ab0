// /v1/responses: answers as OpenAI's Responses API has them.
#include <utility>

#include "http_api/answer_parts.h"
#include "http_api/http_answer.h"
#include "util/str.h"

namespace quire {
namespace {

using Kind = AnswerPart::Kind;

class ResponsesAnswer final : public HttpAnswer, private AnswerParts::Listener {
 public:
  explicit ResponsesAnswer(HttpAnswerOptions given)
      : HttpAnswer(std::move(given)),
        writer_(options().chat),
        id_(options().info.request_id.substr(options().info.request_id.find('_') + 1)) {}

 private:
  std::string write_delta(size_t, const CompletionOutput& delta) override {
    if (!std::exchange(has_begun_, true)) {
      add_response_event("response.created");
      add_response_event("response.in_progress");
    }
    add(delta);
    return std::exchange(bytes_, "");
  }

  std::string write_end() override {
    add_response_event(status_ == "completed"    ? "response.completed"
                       : status_ == "incomplete" ? "response.incomplete"
                                                 : "response.failed");
    return std::exchange(bytes_, "");
  }

  std::string write_body(const std::vector<RequestOutput>& outputs) override {
    add(outputs.front().outputs.front());
    return json_text(response());
  }

  std::string error_body(const HttpError& error) const override {
    return http_error_body(error, HttpRoute::kResponses);
  }
  std::string error_events(const HttpError& error) override {
    status_ = "failed";
    parts_.finish(*this);
    error_ = {{"code", error.status < 500 ? "invalid_prompt" : "server_error"}, {"message", error.message}};
    add_response_event("response.failed");
    return std::exchange(bytes_, "");
  }

  void add(const CompletionOutput& output) {
    const ChatDelta delta = writer_.read(output.text, output.finished());
    if (output.cumulative_logprob) {
      for (OrderedJson& token : token_logprobs(output)) pending_logprobs_.push_back(std::move(token));
    }
    parts_.add(delta, *this);
    if (!output.finished()) return;
    if (output.finish_reason == FinishReason::kLength) {
      status_ = "incomplete";
    } else if (output.finish_reason == FinishReason::kAbort) {
      status_ = "failed";
      error_ = {{"code", "server_error"}, {"message", "the server ended this answer before it was complete"}};
    } else {
      status_ = "completed";
    }
    parts_.finish(*this);
  }

  void on_begin(const AnswerPart& part) override {
    AnswerPart empty = part;
    empty.text.clear();
    items_.push_back(item_json(empty, "in_progress", OrderedJson::array()));
    if (!options().body.stream) return;
    add_event("response.output_item.added", {{"output_index", part.index}, {"item", items_.back()}});
    if (part.kind != Kind::kCall) {
      add_event("response.content_part.added", {{"item_id", items_.back()["id"]},
                                                {"output_index", part.index},
                                                {"content_index", 0},
                                                {"part", content_json(empty, OrderedJson::array())}});
    }
  }

  void on_text(const AnswerPart& part, std::string_view piece) override {
    const OrderedJson logprobs =
        part.kind == Kind::kText ? std::exchange(pending_logprobs_, OrderedJson::array()) : OrderedJson();
    for (const OrderedJson& token : logprobs) logprobs_.push_back(token);
    if (!options().body.stream) return;
    constexpr const char* kTypes[] = {"response.reasoning_text.delta", "response.output_text.delta",
                                      "response.function_call_arguments.delta"};
    const char* type = kTypes[static_cast<size_t>(part.kind)];
    bytes_ +=
        str("event: ", type, "\ndata: {\"type\":\"", type, "\",\"sequence_number\":", sequence_number_++,
            ",\"item_id\":", json_text(items_[part.index]["id"]), ",\"output_index\":", part.index);
    if (part.kind != Kind::kCall) bytes_ += ",\"content_index\":0";
    bytes_ += str(",\"delta\":", json_string(piece));
    if (part.kind == Kind::kText) bytes_ += str(",\"logprobs\":", json_text(logprobs));
    bytes_ += "}\n\n";
  }

  void on_end(const AnswerPart& part) override {
    OrderedJson logprobs = OrderedJson::array();
    if (part.kind == Kind::kText) {
      for (OrderedJson& token : pending_logprobs_) logprobs_.push_back(std::move(token));
      pending_logprobs_ = OrderedJson::array();
      logprobs = std::exchange(logprobs_, OrderedJson::array());
    }
    const char* status = status_ == "in_progress" || status_ == "completed" ? "completed" : "incomplete";
    OrderedJson& item = items_[part.index];
    item = item_json(part, status, logprobs);
    if (!options().body.stream) return;
    const OrderedJson place = {{"item_id", item["id"]}, {"output_index", part.index}};
    if (part.kind == Kind::kCall) {
      OrderedJson done = place;
      done.update({{"name", part.name}, {"arguments", part.text}});
      add_event("response.function_call_arguments.done", done);
    } else {
      const OrderedJson content = content_json(part, logprobs);
      OrderedJson done = place;
      done.update({{"content_index", 0}, {"text", part.text}});
      if (part.kind == Kind::kText) done["logprobs"] = logprobs;
      add_event(part.kind == Kind::kText ? "response.output_text.done" : "response.reasoning_text.done",
                done);
      OrderedJson part_done = place;
      part_done.update({{"content_index", 0}, {"part", content}});
      add_event("response.content_part.done", part_done);
    }
    add_event("response.output_item.done", {{"output_index", part.index}, {"item", item}});
  }

  static OrderedJson content_json(const AnswerPart& part, const OrderedJson& logprobs) {
    if (part.kind == Kind::kReasoning) return {{"type", "reasoning_text"}, {"text", part.text}};
    OrderedJson json = {{"type", "output_text"}, {"text", part.text}, {"annotations", OrderedJson::array()}};
    json["logprobs"] = logprobs;
    return json;
  }

  // As it begins, an item has no content.
  OrderedJson item_json(const AnswerPart& part, const char* status, const OrderedJson& logprobs) const {
    constexpr const char* kPrefixes[] = {"rs_", "msg_", "fc_"};
    OrderedJson json = {{"id", str(kPrefixes[static_cast<size_t>(part.kind)], id_, "_", part.index)}};
    OrderedJson content = OrderedJson::array();
    if (!part.text.empty()) content.push_back(content_json(part, logprobs));
    switch (part.kind) {
      case Kind::kReasoning:
        json.update({{"type", "reasoning"}, {"summary", OrderedJson::array()}});
        json["content"] = std::move(content);
        json["encrypted_content"] = nullptr;
        json["status"] = status;
        break;
      case Kind::kText:
        json.update({{"type", "message"}, {"status", status}, {"role", "assistant"}});
        json["content"] = std::move(content);
        break;
      case Kind::kCall:
        json.update({{"type", "function_call"},
                     {"status", status},
                     {"call_id", part.id},
                     {"name", part.name},
                     {"arguments", part.text}});
        break;
    }
    return json;
  }

  OrderedJson response() const {
    const OrderedJson& given = options().body.settings;
    OrderedJson json = {{"id", options().info.request_id},
                        {"object", "response"},
                        {"created_at", options().info.created},
                        {"status", status_},
                        {"background", false},
                        {"error", error_}};
    json["incomplete_details"] = nullptr;
    if (status_ == "incomplete") json["incomplete_details"] = {{"reason", "max_output_tokens"}};
    json["model"] = options().model;
    json["output"] = status_ == "in_progress" ? OrderedJson::array() : items_;
    json["previous_response_id"] = nullptr;
    json["store"] = false;
    json["truncation"] = "disabled";
    json["usage"] = status_ == "in_progress" ? OrderedJson() : usage_json();
    const OrderedJson otherwise = {{"instructions", nullptr},
                                   {"max_output_tokens", nullptr},
                                   {"max_tool_calls", nullptr},
                                   {"metadata", OrderedJson::object()},
                                   {"reasoning", {{"effort", nullptr}, {"summary", nullptr}}},
                                   {"service_tier", "default"},
                                   {"text", {{"format", {{"type", "text"}}}}},
                                   {"tool_choice", "auto"},
                                   {"tools", OrderedJson::array()},
                                   {"user", nullptr}};
    json.update(otherwise);
    json.update(given);
    return json;
  }

  OrderedJson usage_json() const {
    const RequestUsage used = usage();
    OrderedJson json = {{"input_tokens", used.num_prompt_tokens}};
    json["input_tokens_details"] = {{"cached_tokens", used.num_cached_tokens}, {"cache_write_tokens", 0}};
    json["output_tokens"] = used.num_generation_tokens;
    json["output_tokens_details"] = {{"reasoning_tokens", used.num_reasoning_tokens}};
    json["total_tokens"] = used.num_prompt_tokens + used.num_generation_tokens;
    return json;
  }

  void add_event(const char* type, const OrderedJson& members) {
    OrderedJson data = {{"type", type}, {"sequence_number", sequence_number_++}};
    data.update(members);
    bytes_ += str("event: ", type, "\ndata: ", json_text(data), "\n\n");
  }
  void add_response_event(const char* type) {
    OrderedJson members = OrderedJson::object();
    members["response"] = response();
    add_event(type, members);
  }

  ChatMessageWriter writer_;
  AnswerParts parts_;
  const std::string id_;  // what those of items end with
  std::string bytes_;     // of events, until they are given out
  bool has_begun_ = false;
  int64_t sequence_number_ = 0;
  std::string status_ = "in_progress";
  OrderedJson error_;
  OrderedJson items_ = OrderedJson::array();
  OrderedJson pending_logprobs_ = OrderedJson::array();  // not yet told of with a text
  OrderedJson logprobs_ = OrderedJson::array();          // of the text that is open
};

}  // namespace

std::unique_ptr<HttpAnswer> make_responses_answer(HttpAnswerOptions options) {
  return std::make_unique<ResponsesAnswer>(std::move(options));
}

}  // namespace quire
