// Outputs of the engine as the API's answers.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "http_api/request_body.h"
#include "quire/chat.h"
#include "quire/http_api.h"
#include "quire/request_output.h"

namespace quire {

// What an answer is made with.
struct HttpAnswerOptions {
  HttpBody body;  // its requests have been taken from it
  HttpRequestInfo info;
  std::string model;
  std::vector<std::string> request_ids;  // of the prompts, in order
  std::vector<std::string> echoes;       // with `echo`: what the choices of each prompt begin with
  int32_t num_choices = 1;               // of each prompt
  int32_t max_tokens = 0;
  std::shared_ptr<const Tokenizer> tokenizer;
  ChatAnswerOptions chat;
};

// Not thread-safe.
class HttpAnswer {
 public:
  virtual ~HttpAnswer() = default;

  // What is to be sent for these outputs; see HttpExchange::take.
  std::string write(std::vector<RequestOutput>&& outputs);
  bool finished() const { return finished_; }
  bool failed() const { return failed_; }
  int32_t status() const { return status_; }
  RequestUsage usage() const;
  const RequestMetrics& metrics() const { return outputs_.front().metrics; }
  const std::vector<FinishReason>& finish_reasons() const { return finish_reasons_; }
  const std::string& error() const { return error_; }  // why it failed

 protected:
  explicit HttpAnswer(HttpAnswerOptions options);

  // Of a stream: what these deltas bring, "" for nothing, and what ends it.
  virtual std::string write_delta(size_t prompt, const CompletionOutput& delta) = 0;
  virtual std::string write_end() = 0;
  // Of an answer that comes at once: every prompt's output is there.
  virtual std::string write_body(const std::vector<RequestOutput>& outputs) = 0;
  // An error's body, and the end of a stream by it.
  virtual std::string error_body(const HttpError& error) const = 0;
  virtual std::string error_events(const HttpError& error) = 0;

  const HttpAnswerOptions& options() const { return options_; }
  // How the API writes a token's text.
  std::string token_text(int32_t id) const;
  // [{"token", "logprob", "bytes", "top_logprobs"}]
  OrderedJson token_logprobs(const CompletionOutput& completion) const;

 private:
  std::string write_events(const std::vector<RequestOutput>& outputs);
  std::string fail(const std::string& message);

  const HttpAnswerOptions options_;
  std::unordered_map<std::string, size_t> prompt_of_;  // by request id
  // Of each prompt: all of it, or of a stream what is told of more than once.
  std::vector<RequestOutput> outputs_;
  size_t num_unfinished_;
  std::vector<FinishReason> finish_reasons_;
  std::string error_;
  bool has_sent_ = false, finished_ = false, failed_ = false;
  int32_t status_ = 200;
};

std::unique_ptr<HttpAnswer> make_answer(HttpRoute route, HttpAnswerOptions options);
std::unique_ptr<HttpAnswer> make_completions_answer(HttpAnswerOptions options);
std::unique_ptr<HttpAnswer> make_chat_answer(HttpAnswerOptions options);
std::unique_ptr<HttpAnswer> make_messages_answer(HttpAnswerOptions options);
std::unique_ptr<HttpAnswer> make_responses_answer(HttpAnswerOptions options);

// JSON text of a string; what is no valid UTF-8 becomes U+FFFD.
std::string json_string(std::string_view text);
std::string json_text(const OrderedJson& json);
// What ended a completion: a string, a token id, or null.
OrderedJson stop_reason_json(const CompletionOutput& output);
// JSON has no infinity: what cannot be is told as vLLM does.
double finite_logprob(const Logprob& logprob);

}  // namespace quire
