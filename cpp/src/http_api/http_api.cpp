#include "quire/http_api.h"

#include <atomic>
#include <chrono>
#include <utility>

#include "http_api/http_answer.h"
#include "http_api/request_body.h"
#include "quire/fields.h"
#include "quire/generation_config.h"
#include "util/nearest.h"
#include "util/str.h"

namespace quire {
namespace {

class Exchange final : public HttpExchange {
 public:
  Exchange(Engine& engine, std::shared_ptr<OutputQueue> queue, std::unique_ptr<HttpAnswer> answer,
           std::vector<std::string> request_ids, SamplingParams sampling_params, std::string lora_name,
           bool is_stream)
      : engine_(engine),
        queue_(std::move(queue)),
        answer_(std::move(answer)),
        request_ids_(std::move(request_ids)),
        sampling_params_(std::move(sampling_params)),
        lora_name_(std::move(lora_name)),
        is_stream_(is_stream) {}

  bool is_stream() const override { return is_stream_; }
  std::string take() override {
    if (answer_->finished()) return "";
    std::string bytes = answer_->write(queue_->take(std::chrono::milliseconds(0)));
    // What failed takes the other prompts' requests with it.
    if (answer_->failed()) abort();
    return bytes;
  }
  bool finished() const override { return answer_->finished(); }
  int32_t status() const override { return answer_->status(); }
  void abort() override {
    for (const std::string& id : request_ids_) engine_.abort_request(id);
  }
  RequestUsage usage() const override { return answer_->usage(); }
  RequestMetrics metrics() const override { return answer_->metrics(); }
  const SamplingParams& sampling_params() const override { return sampling_params_; }
  const std::string& lora_name() const override { return lora_name_; }
  std::vector<FinishReason> finish_reasons() const override { return answer_->finish_reasons(); }
  std::string error() const override { return answer_->error(); }

 private:
  Engine& engine_;
  const std::shared_ptr<OutputQueue> queue_;
  const std::unique_ptr<HttpAnswer> answer_;
  const std::vector<std::string> request_ids_;
  const SamplingParams sampling_params_;
  const std::string lora_name_;
  const bool is_stream_;
};

}  // namespace

HttpModelNotFound::~HttpModelNotFound() = default;
HttpExchange::~HttpExchange() = default;

namespace {

std::string anthropic_error_body(const HttpError& error) {
  const char* type = "invalid_request_error";
  if (error.status == 401) type = "authentication_error";
  if (error.status == 403) type = "permission_error";
  if (error.status == 404) type = "not_found_error";
  if (error.status == 408) type = "timeout_error";
  if (error.status == 413) type = "request_too_large";
  if (error.status == 429) type = "rate_limit_error";
  if (error.status >= 500) type = "api_error";
  if (error.status == 503) type = "overloaded_error";
  OrderedJson body = {{"type", "error"}};
  body["error"] = {{"type", type}, {"message", error.message}};
  return json_text(body);
}

}  // namespace

std::string http_error_body(const HttpError& error, HttpRoute route) {
  if (route == HttpRoute::kMessages || route == HttpRoute::kCountTokens) return anthropic_error_body(error);
  const char* type = "invalid_request_error";
  if (error.status == 401) type = "authentication_error";
  if (error.status == 403) type = "permission_error";
  if (error.status == 404) type = "not_found_error";
  if (error.status == 429) type = "rate_limit_error";
  if (error.status >= 500) type = "server_error";
  const auto or_null = [](const std::string& text) {
    return text.empty() ? OrderedJson(nullptr) : OrderedJson(text);
  };
  OrderedJson inner = {{"message", error.message}, {"type", type}};
  inner["param"] = or_null(error.param);
  inner["code"] = or_null(error.code);
  OrderedJson body = OrderedJson::object();
  body["error"] = std::move(inner);
  return json_text(body);
}

namespace {

// What the engine calls otherwise than a route's clients do.
struct OtherName {
  HttpRoute route;
  std::string_view field, theirs;
};
constexpr OtherName kOtherNames[] = {
    {HttpRoute::kResponses, "max_tokens", "max_output_tokens"},
    {HttpRoute::kMessages, "stop", "stop_sequences"},
    {HttpRoute::kCompletions, "prompt_token_ids", "prompt"},
};

std::string with_their_name(HttpRoute route, std::string message) {
  const std::string_view field = first_name(message);
  for (const OtherName& other : kOtherNames) {
    if (other.route == route && other.field == field)
      return message.replace(0, other.field.size(), other.theirs);
  }
  return message;
}

// Of a prompt that is one of several.
std::string with_place(size_t place, const std::string& message) {
  constexpr std::string_view kPrompt = "prompt";
  const bool is_of_prompt = first_name(message) == kPrompt;
  return str(kPrompt, "[", place, "]", is_of_prompt ? message.substr(kPrompt.size()) : str(": ", message));
}

}  // namespace

HttpError http_error(const Engine& engine, HttpRoute route, const std::exception& exception) {
  HttpError error;
  error.message = with_their_name(route, exception.what());
  if (dynamic_cast<const HttpModelNotFound*>(&exception) != nullptr) {
    error.status = 404;
    error.param = "model";
    error.code = "model_not_found";
  } else if (dynamic_cast<const InvalidArgument*>(&exception) != nullptr) {
    error.param = field_at_fault(error.message);
    if (const auto* one = dynamic_cast<const InvalidRequest*>(&exception))
      error.message = with_place(one->place, error.message);
  } else if (dynamic_cast<const ResourceExhausted*>(&exception) != nullptr) {
    const bool is_over = !engine.dead_error().empty() || engine.is_draining() || engine.is_sleeping();
    error.status = is_over ? 503 : 429;
    error.code = is_over ? "engine_unavailable" : "queue_full";
  } else {
    error.status = 500;
  }
  return error;
}

HttpApiConfig model_api_config(const Engine& engine, const EngineConfig& config,
                               const std::string& reasoning_parser, const std::string& tool_parser) {
  HttpApiConfig made;
  made.completion_params = default_sampling_params(config, made.completion_params);
  made.chat_params = default_sampling_params(config, made.chat_params);
  if (!reasoning_parser.empty() || !tool_parser.empty())
    made.chat_format = ChatFormat::make(reasoning_parser, tool_parser, engine.tokenizer());
  made.has_thinking_budget = !config.think_end_token_ids.empty();
  made.has_adapters = config.enable_lora;
  return made;
}

namespace {

HttpModelNotFound model_not_found(const std::string& given, const Engine& engine,
                                  const HttpApiConfig& config) {
  const std::string name = given.substr(0, 200);  // a body may be long, and who is nearest a long search
  std::string known;
  for (const std::string& served : config.served_model_names)
    known += (known.empty() ? "'" : ", '") + served + "'";
  std::vector<std::string> adapters;
  if (config.has_adapters)
    for (LoraInfo& info : engine.list_loras()) adapters.push_back(std::move(info.lora_name));
  if (!adapters.empty())
    known += str(", and of adapters the nearest is '", nearest_name(name, adapters), "'");
  return HttpModelNotFound(str("model '", name, "' does not exist; there is ", known));
}

// Has the requests computed with the adapter that the body names as its model.
void take_adapter(HttpBody& body, const Engine& engine, const HttpApiConfig& config) {
  const std::string& name = body.other_model;
  if (name.empty()) return;
  if (!engine.has_lora(name)) throw model_not_found(name, engine, config);
  for (EngineRequest& request : body.requests) {
    if (!request.lora_name.empty() && request.lora_name != name) {
      throw InvalidArgument(str("lora_name '", request.lora_name.substr(0, 200), "' and model '", name,
                                "' are two adapters; give one of them"));
    }
    request.lora_name = name;
  }
}

}  // namespace

struct HttpApi::Impl {
  Engine& engine;
  const HttpApiConfig config;
  std::atomic<uint64_t> num_requests{0};
};

HttpApi::HttpApi(Engine& engine, HttpApiConfig config) : impl_(new Impl{engine, std::move(config), {}}) {
  if (impl_->config.served_model_names.empty())
    throw InvalidArgument("served_model_names must have a name; give at least one");
  for (const SamplingParams* params : {&impl_->config.completion_params, &impl_->config.chat_params})
    params->validate(engine.model().vocab_size);
}
HttpApi::~HttpApi() = default;

std::unique_ptr<HttpExchange> HttpApi::begin(HttpRoute route, std::string_view body,
                                             const HttpRequestInfo& info,
                                             std::shared_ptr<OutputQueue> queue) const {
  Engine& engine = impl_->engine;
  if (route == HttpRoute::kCountTokens) throw InvalidArgument("route kCountTokens is for count_tokens()");
  HttpAnswerOptions options;
  options.body = read_body(route, body, impl_->config);
  take_adapter(options.body, engine, impl_->config);
  options.info = info;
  options.tokenizer = engine.tokenizer();
  std::vector<EngineRequest> requests = std::exchange(options.body.requests, {});
  options.model = requests.front().lora_name.empty() ? impl_->config.served_model_names.front()
                                                     : requests.front().lora_name;
  if (options.body.thinking_budget && impl_->config.has_thinking_budget)
    requests.front().sampling_params.max_thinking_tokens = options.body.thinking_budget;
  if (route != HttpRoute::kCompletions)
    options.chat = prepare_chat(engine, impl_->config.chat_format, options.body.chat, requests.front());
  options.num_choices = requests.front().sampling_params.n;
  options.max_tokens = requests.front().sampling_params.max_tokens;
  const RequestOutputKind kind = requests.front().sampling_params.output_kind;
  std::vector<OutputCallback> callbacks;
  for (size_t i = 0; i < requests.size(); ++i) {
    EngineRequest& request = requests[i];
    // Clients may send one id twice, of a request that is tried again.
    request.request_id = str(info.request_id, "-", ++impl_->num_requests);
    options.request_ids.push_back(request.request_id);
    if (options.body.echo) {
      options.echoes.push_back(!request.prompt.empty() || !options.tokenizer
                                   ? request.prompt
                                   : options.tokenizer->decode(request.prompt_token_ids));
    }
    callbacks.push_back(queue->callback(kind));
  }
  const bool is_stream = options.body.stream;
  std::vector<std::string> ids = options.request_ids;
  SamplingParams params = requests.front().sampling_params;
  std::string lora_name = requests.front().lora_name;
  const std::string other_model = options.body.other_model;
  auto answer = make_answer(route, std::move(options));
  try {
    engine.add_requests(std::move(requests), std::move(callbacks));
  } catch (const InvalidArgument&) {
    // Removed meanwhile.
    if (!other_model.empty() && !engine.has_lora(other_model))
      throw model_not_found(other_model, engine, impl_->config);
    throw;
  }
  return std::make_unique<Exchange>(engine, std::move(queue), std::move(answer), std::move(ids),
                                    std::move(params), std::move(lora_name), is_stream);
}

std::string HttpApi::count_tokens(std::string_view body) const {
  const Engine& engine = impl_->engine;
  HttpBody read = read_count_tokens(body, impl_->config);
  take_adapter(read, engine, impl_->config);
  EngineRequest& request = read.requests.front();
  prepare_chat(engine, impl_->config.chat_format, read.chat, request);
  const auto tokenizer = engine.tokenizer();
  if (!tokenizer) throw InvalidArgument("messages need a tokenizer, and the model has none");
  const auto ids = tokenizer->encode(request.prompt, request.add_special_tokens);
  return json_text({{"input_tokens", ids.size()}});
}

}  // namespace quire
