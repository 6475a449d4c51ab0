// /v1/completions.
#include <span>
#include <utility>

#include "http_api/choices_answer.h"
#include "util/str.h"

namespace quire {
namespace {

// The legacy form: an array for each of text_offset, tokens, token_logprobs and top_logprobs.
class LogprobArrays {
 public:
  void append(const PositionLogprobs& position, const std::string& token, size_t offset,
              const std::function<std::string(int32_t)>& text_of) {
    offsets_.push_back(offset);
    tokens_.push_back(token);
    if (position.empty()) {  // of the prompt's first token nothing is known
      logprobs_.push_back(nullptr);
      top_.push_back(nullptr);
      return;
    }
    logprobs_.push_back(finite_logprob(position.front()));
    OrderedJson top = OrderedJson::object();
    for (const Logprob& one : std::span(position).subspan(position.size() > 1 ? 1 : 0))
      top[text_of(one.token_id)] = finite_logprob(one);
    top[token] = finite_logprob(position.front());
    top_.push_back(std::move(top));
  }
  OrderedJson json() && {
    return {{"text_offset", std::move(offsets_)},
            {"token_logprobs", std::move(logprobs_)},
            {"tokens", std::move(tokens_)},
            {"top_logprobs", std::move(top_)}};
  }

 private:
  OrderedJson offsets_ = OrderedJson::array(), logprobs_ = OrderedJson::array(),
              tokens_ = OrderedJson::array(), top_ = OrderedJson::array();
};

class CompletionsAnswer final : public ChoicesAnswer {
 public:
  explicit CompletionsAnswer(HttpAnswerOptions given)
      : ChoicesAnswer(std::move(given)),
        offsets_(options().request_ids.size() * static_cast<size_t>(options().num_choices)),
        has_begun_(offsets_.size()) {}

 protected:
  const char* object(bool) const override { return "text_completion"; }

  std::string event(size_t choice, const CompletionOutput& delta) override {
    std::string text = delta.text;
    const bool is_first = std::exchange(has_begun_[choice], 1) == 0;
    if (is_first && options().body.echo) text = echo(choice) + text;
    if (text.empty() && !delta.finished() && delta.logprobs.empty() &&
        !(options().body.return_token_ids && !delta.token_ids.empty()))
      return "";
    std::string bytes = str(begin_event(), "{\"index\":", choice, ",\"text\":", json_string(text));
    if (delta.cumulative_logprob) {
      bytes += str(",\"logprobs\":", json_text(logprobs_json(choice, delta, nullptr)));
    } else {
      bytes += ",\"logprobs\":null";
    }
    if (options().body.return_token_ids)
      bytes += str(",\"token_ids\":", json_text(OrderedJson(delta.token_ids)));
    if (!delta.finished()) return bytes + ",\"finish_reason\":null}" + end_event();
    bytes += str(",\"finish_reason\":\"", finish_reason_name(delta.finish_reason),
                 "\",\"stop_reason\":", json_text(stop_reason_json(delta)), "}");
    return bytes + end_event();
  }

  OrderedJson choice_json(size_t choice, const CompletionOutput& completion,
                          const RequestOutput& output) override {
    OrderedJson json = {{"index", choice},
                        {"text", options().body.echo ? echo(choice) + completion.text : completion.text},
                        {"logprobs", nullptr},
                        {"finish_reason", finish_reason_name(completion.finish_reason)},
                        {"stop_reason", stop_reason_json(completion)}};
    if (completion.cumulative_logprob)
      json["logprobs"] = logprobs_json(choice, completion, options().body.echo ? &output : nullptr);
    if (options().body.return_token_ids) {
      json["token_ids"] = completion.token_ids;
      json["prompt_token_ids"] = *output.prompt_token_ids;
    }
    return json;
  }

 private:
  const std::string& echo(size_t choice) const {
    return options().echoes.at(choice / static_cast<size_t>(options().num_choices));
  }

  // `prompt`: whose tokens come before, when it is told.
  OrderedJson logprobs_json(size_t choice, const CompletionOutput& completion, const RequestOutput* prompt) {
    LogprobArrays arrays;
    size_t& offset = offsets_[choice];
    const auto text_of = [this](int32_t id) { return token_text(id); };
    const auto append = [&](const PositionLogprobs& position, int32_t id) {
      const std::string token = token_text(id);
      arrays.append(position, token, offset, text_of);
      offset += token.size();
    };
    if (prompt != nullptr && prompt->prompt_logprobs) {
      for (size_t i = 0; i < prompt->prompt_logprobs->size(); ++i)
        append((*prompt->prompt_logprobs)[i], (*prompt->prompt_token_ids)[i]);
    }
    for (size_t i = 0; i < completion.logprobs.size(); ++i)
      append(completion.logprobs[i], completion.token_ids[i]);
    return std::move(arrays).json();
  }

  std::vector<size_t> offsets_;     // in the text, of each choice's next token
  std::vector<uint8_t> has_begun_;  // of each choice
};

}  // namespace

std::unique_ptr<HttpAnswer> make_completions_answer(HttpAnswerOptions options) {
  return std::make_unique<CompletionsAnswer>(std::move(options));
}

}  // namespace quire
