// OpenAI's HTTP API, and Anthropic's, without the sockets: bodies of requests become requests of the engine,
// and their outputs become bodies or server-sent events. A server brings the bytes in and out.
//
//   quire::HttpApi api(engine, config);
//   auto exchange = api.begin(quire::HttpRoute::kChatCompletions, body, {.request_id = "chatcmpl-1"});
//   std::string bytes = exchange->take();  // again and again, until exchange->finished()
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "quire/chat_parsers.h"
#include "quire/engine.h"
#include "quire/export.h"
#include "quire/request_output.h"
#include "quire/sampling_params.h"

namespace quire {

// POST /v1/completions, /v1/chat/completions and /v1/responses, OpenAI's; /v1/messages and
// /v1/messages/count_tokens, Anthropic's.
enum class HttpRoute : uint8_t {
  kCompletions = 0,
  kChatCompletions = 1,
  kMessages = 2,
  kCountTokens = 3,
  kResponses = 4
};

struct HttpApiConfig {
  // What a request may call the model, and answers do by the first of them. At least one. A request may also
  // give the name of one of the engine's adapters, which computes with the model then, and answers do.
  std::vector<std::string> served_model_names;
  // How the model writes reasoning and calls; null: in no known way.
  std::shared_ptr<const ChatFormat> chat_format;
  std::string chat_template;  // Jinja, for requests that bring none; empty: the model's own
  // What a body's fields are laid over; see default_sampling_params (generation_config.h). By OpenAI's rule a
  // completion ends after 16 tokens and an answer in a conversation by itself.
  SamplingParams completion_params;
  SamplingParams chat_params = without_limit();

  static SamplingParams without_limit() {
    SamplingParams params;
    params.max_tokens = std::numeric_limits<int32_t>::max();
    return params;
  }
  // Whether the engine has think_end_token_ids, and so can keep to a body's thinking.budget_tokens.
  bool has_thinking_budget = false;
  bool has_adapters = false;                // whether the engine has enable_lora
  bool return_tokens_as_token_ids = false;  // log-probabilities name tokens "token_id:17"
};

// That of an engine: its model's own sampling parameters, and how the model writes reasoning and calls, by
// ChatFormat's names (empty: it does neither). Names are the caller's to fill in. Throws InvalidArgument.
QUIRE_API HttpApiConfig model_api_config(const Engine& engine, const EngineConfig& config,
                                         const std::string& reasoning_parser, const std::string& tool_parser);

// What a server knows of a request besides its body.
struct HttpRequestInfo {
  std::string request_id;  // answers have it as their id
  int64_t created = 0;     // seconds since 1970
};

// An error, as a client is told of it.
struct HttpError {
  int32_t status = 400;
  std::string message;
  std::string param;  // the field at fault; empty: none
  std::string code;   // a word for programs; empty: none
};
// A body in the form of the route's API.
QUIRE_API std::string http_error_body(const HttpError& error, HttpRoute route);
// What is to be said of an exception that `begin` threw: InvalidArgument is 400, ResourceExhausted 429, or
// 503 when the engine has ended, drains or sleeps, all else 500. A field that the message begins with is
// `param`, by the name that it has on the route.
QUIRE_API HttpError http_error(const Engine& engine, HttpRoute route, const std::exception& exception);

// One request on its way. Not thread-safe, but for abort().
class QUIRE_API HttpExchange {
 public:
  virtual ~HttpExchange();

  // Whether the answer is server-sent events.
  virtual bool is_stream() const = 0;
  // What is to be sent now, as far as outputs have arrived; empty: nothing yet. The first bytes of a stream
  // may be an error's body instead: status() says so.
  virtual std::string take() = 0;
  // All has been taken.
  virtual bool finished() const = 0;
  // Of the answer: known with the first bytes. 200; for one that failed before anything was sent 500, or 400
  // where a field of the body is at fault, a grammar that nothing fits.
  virtual int32_t status() const = 0;
  // Ends its requests; their outputs still come. Thread-safe.
  virtual void abort() = 0;
  // What it has used so far, summed over its prompts; for logs and quotas.
  virtual RequestUsage usage() const = 0;
  // Of its first prompt.
  virtual RequestMetrics metrics() const = 0;
  // What its first prompt was asked with; for traces.
  virtual const SamplingParams& sampling_params() const = 0;
  // The adapter that it is computed with; empty: none.
  virtual const std::string& lora_name() const = 0;
  // Of each choice that has ended, in the order in which they did.
  virtual std::vector<FinishReason> finish_reasons() const = 0;
  // Why it failed; empty: it has not.
  virtual std::string error() const = 0;
};

// Thread-safe.
class QUIRE_API HttpApi {
 public:
  // Throws InvalidArgument for a configuration that cannot be. The engine must outlive it.
  HttpApi(Engine& engine, HttpApiConfig config);
  ~HttpApi();
  HttpApi(const HttpApi&) = delete;
  HttpApi& operator=(const HttpApi&) = delete;

  // Reads a body and queues what it asks for, whose outputs come through `queue`. Throws InvalidArgument,
  // naming the field, its value and what would do, and ResourceExhausted; nothing is queued then. A request
  // for another model is HttpModelNotFound.
  std::unique_ptr<HttpExchange> begin(HttpRoute route, std::string_view body, const HttpRequestInfo& info,
                                      std::shared_ptr<OutputQueue> queue) const;

  // What /v1/messages/count_tokens answers: how many tokens the prompt of a body of /v1/messages has, whose
  // max_tokens may be absent. Throws as `begin` does.
  std::string count_tokens(std::string_view body) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// A request names a model that is not served, and no adapter has that name.
class QUIRE_API HttpModelNotFound : public InvalidArgument {
 public:
  using InvalidArgument::InvalidArgument;
  ~HttpModelNotFound() override;
};

// What a body may have, for documentation of the API: beside the fields of requests (and conversations).
struct HttpField {
  std::string name;
  std::string json_schema;  // of its values
  std::string doc;
};
QUIRE_API std::vector<HttpField> http_fields(HttpRoute route);
// Fields of requests that a route's bodies may not have, and those that they must.
QUIRE_API std::vector<std::string> http_refused_fields(HttpRoute route);
QUIRE_API std::vector<std::string> http_required_fields(HttpRoute route);

}  // namespace quire
