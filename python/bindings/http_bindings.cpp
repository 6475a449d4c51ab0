// The HTTP APIs, for a server in Python.
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <memory>

#include "bindings.h"
#include "quire/http_api.h"
#include "values.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace quire::bindings {
namespace {

using Begun = std::variant<std::unique_ptr<HttpExchange>, HttpError>;
using Counted = std::variant<nb::bytes, HttpError>;

// What goes wrong is an answer too.
Begun begin(const HttpApi& api, const Engine& engine, HttpRoute route, const nb::bytes& body,
            std::string request_id, int64_t created, std::shared_ptr<OutputQueue> queue) {
  const std::string_view text(body.c_str(), body.size());
  const ReleasedGil released;
  try {
    return api.begin(route, text, {std::move(request_id), created}, std::move(queue));
  } catch (const std::exception& exception) {
    return http_error(engine, route, exception);
  }
}

Counted count_tokens(const HttpApi& api, const Engine& engine, const nb::bytes& body) {
  const std::string_view text(body.c_str(), body.size());
  std::string counted;
  try {
    const ReleasedGil released;
    counted = api.count_tokens(text);
  } catch (const std::exception& exception) {
    return http_error(engine, HttpRoute::kCountTokens, exception);
  }
  return nb::bytes(counted.data(), counted.size());
}

}  // namespace

void bind_http(nb::module_& m) {
  nb::enum_<HttpRoute>(m, "HttpRoute", "What a body is sent to.")
      .value("COMPLETIONS", HttpRoute::kCompletions, "/v1/completions")
      .value("CHAT_COMPLETIONS", HttpRoute::kChatCompletions, "/v1/chat/completions")
      .value("MESSAGES", HttpRoute::kMessages, "/v1/messages")
      .value("COUNT_TOKENS", HttpRoute::kCountTokens, "/v1/messages/count_tokens")
      .value("RESPONSES", HttpRoute::kResponses, "/v1/responses");

  nb::class_<HttpError>(m, "HttpError", "An error, as a client is told of it.")
      .def(
          "__init__",
          [](HttpError* self, int32_t status, std::string message, std::string param, std::string code) {
            new (self) HttpError{status, std::move(message), std::move(param), std::move(code)};
          },
          "status"_a, "message"_a, "param"_a = "", "code"_a = "")
      .def_ro("status", &HttpError::status)
      .def_ro("message", &HttpError::message)
      .def_ro("param", &HttpError::param)
      .def_ro("code", &HttpError::code)
      .def(
          "body",
          [](const HttpError& self, HttpRoute route) {
            const std::string text = http_error_body(self, route);
            return nb::bytes(text.data(), text.size());
          },
          "route"_a = HttpRoute::kCompletions, "The body, as the route's API has it.");

  nb::class_<HttpExchange>(m, "HttpExchange", "One request on its way.")
      .def_prop_ro("is_stream", &HttpExchange::is_stream)
      .def(
          "take",
          [](HttpExchange& self) {
            // Microseconds, in which nothing waits for Python.
            const std::string text = self.take();
            return nb::bytes(text.data(), text.size());
          },
          "What is to be sent now; empty: nothing yet.")
      .def_prop_ro("finished", &HttpExchange::finished)
      .def_prop_ro("status", &HttpExchange::status)
      .def("abort", &HttpExchange::abort, ReleaseGil())
      .def_prop_ro("usage", &HttpExchange::usage)
      .def_prop_ro("metrics", &HttpExchange::metrics)
      .def_prop_ro(
          "sampling_params", [](const HttpExchange& self) { return self.sampling_params(); },
          "What its first prompt was asked with.")
      .def_prop_ro(
          "lora_name", [](const HttpExchange& self) { return self.lora_name(); },
          "The adapter that it is computed with; empty: none.")
      .def_prop_ro(
          "finish_reasons",
          [](const HttpExchange& self) {
            std::vector<std::string> names;
            for (const FinishReason reason : self.finish_reasons())
              names.emplace_back(finish_reason_name(reason));
            return names;
          },
          "Of each choice that has ended, in the order in which they did.")
      .def_prop_ro("error", &HttpExchange::error, "Why it failed; empty: it has not.");

  nb::class_<HttpApi>(m, "HttpApi", "Bodies of requests to requests of an engine; see quire/http_api.h.")
      .def(
          "__init__",
          [](HttpApi* self, Engine& engine, const EngineConfig& engine_config,
             std::vector<std::string> served_model_names, const std::string& reasoning_parser,
             const std::string& tool_parser, std::string chat_template, bool return_tokens_as_token_ids) {
            HttpApiConfig config = model_api_config(engine, engine_config, reasoning_parser, tool_parser);
            config.served_model_names = std::move(served_model_names);
            config.chat_template = std::move(chat_template);
            config.return_tokens_as_token_ids = return_tokens_as_token_ids;
            new (self) HttpApi(engine, std::move(config));
          },
          "engine"_a, "config"_a, "served_model_names"_a, "reasoning_parser"_a = "", "tool_parser"_a = "",
          "chat_template"_a = "", "return_tokens_as_token_ids"_a = false, nb::keep_alive<1, 2>())
      .def("begin", begin, "engine"_a, "route"_a, "body"_a, "request_id"_a, "created"_a, "queue"_a,
           nb::keep_alive<0, 1>(),
           "Reads a body and queues what it asks for; its outputs come through `queue`.")
      .def("count_tokens", count_tokens, "engine"_a, "body"_a,
           "The answer of /v1/messages/count_tokens to a body.");

  m.def("http_refused_fields", http_refused_fields, "route"_a, "Fields that a route's bodies may not have.");
  m.def("http_required_fields", http_required_fields, "route"_a, "Fields that a route's bodies must have.");
  m.def(
      "http_fields",
      [](HttpRoute route) {
        std::vector<std::vector<std::string>> fields;
        for (const HttpField& field : http_fields(route))
          fields.push_back({field.name, field.json_schema, field.doc});
        return fields;
      },
      "route"_a, "Of each field of a body that is none of a request's: name, JSON schema, what it does.");
}

}  // namespace quire::bindings
