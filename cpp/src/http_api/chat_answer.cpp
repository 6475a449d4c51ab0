// /v1/chat/completions.
#include <utility>

#include "http_api/choices_answer.h"
#include "util/str.h"

namespace quire {
namespace {

class ChatAnswer final : public ChoicesAnswer {
 public:
  explicit ChatAnswer(HttpAnswerOptions given) : ChoicesAnswer(std::move(given)) {
    for (int32_t i = 0; i < options().num_choices; ++i) writers_.emplace_back(options().chat);
  }

 protected:
  const char* object(bool is_event) const override {
    return is_event ? "chat.completion.chunk" : "chat.completion";
  }

  std::string event(size_t choice, const CompletionOutput& delta) override {
    ChatMessageWriter& writer = writers_[choice];
    const std::string message = without_reasoning(writer.delta(delta.text, delta.finished()));
    if (message == "{}" && !delta.finished() && delta.logprobs.empty() &&
        !(options().body.return_token_ids && !delta.token_ids.empty()))
      return "";
    std::string bytes = str(begin_event(), "{\"index\":", choice, ",\"delta\":", message);
    if (delta.cumulative_logprob) {
      bytes += str(",\"logprobs\":", json_text(logprobs_json(delta)));
    } else {
      bytes += ",\"logprobs\":null";
    }
    if (options().body.return_token_ids)
      bytes += str(",\"token_ids\":", json_text(OrderedJson(delta.token_ids)));
    if (!delta.finished()) return bytes + ",\"finish_reason\":null}" + end_event();
    bytes += str(",\"finish_reason\":\"", writer.finish_reason(delta.finish_reason),
                 "\",\"stop_reason\":", json_text(stop_reason_json(delta)), "}");
    return bytes + end_event();
  }

  OrderedJson choice_json(size_t choice, const CompletionOutput& completion,
                          const RequestOutput& output) override {
    ChatMessageWriter& writer = writers_[choice];
    OrderedJson message = OrderedJson::parse(without_reasoning(writer.message(completion.text)));
    OrderedJson json = {{"index", choice}};
    json["message"] = std::move(message);
    json["logprobs"] = completion.cumulative_logprob ? logprobs_json(completion) : OrderedJson(nullptr);
    json["finish_reason"] = writer.finish_reason(completion.finish_reason);
    json["stop_reason"] = stop_reason_json(completion);
    if (options().body.return_token_ids) {
      json["token_ids"] = completion.token_ids;
      json["prompt_token_ids"] = *output.prompt_token_ids;
    }
    return json;
  }

 private:
  std::string without_reasoning(std::string message) const {
    if (options().body.include_reasoning || message.find("\"reasoning\"") == std::string::npos)
      return message;
    OrderedJson json = OrderedJson::parse(message);
    json.erase("reasoning");
    return json_text(json);
  }

  OrderedJson logprobs_json(const CompletionOutput& completion) const {
    OrderedJson json = OrderedJson::object();
    json["content"] = token_logprobs(completion);
    return json;
  }

  std::vector<ChatMessageWriter> writers_;  // of each choice
};

}  // namespace

std::unique_ptr<HttpAnswer> make_chat_answer(HttpAnswerOptions options) {
  return std::make_unique<ChatAnswer>(std::move(options));
}

}  // namespace quire
