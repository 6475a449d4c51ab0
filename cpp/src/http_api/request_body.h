// What a body of the API says, beside the fields of requests and conversations.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/json.h"
#include "quire/chat.h"
#include "quire/engine.h"
#include "quire/http_api.h"

namespace quire {

struct HttpBody {
  std::string other_model;  // the model's name where it is none of the served ones; else empty
  bool stream = false;
  bool include_usage = false;           // a last event of the stream has what was used
  bool continuous_usage_stats = false;  // every event has
  bool echo = false;                    // the prompt comes before the answer
  bool return_token_ids = false;
  bool return_tokens_as_token_ids = false;
  bool include_reasoning = true;
  std::optional<int32_t> thinking_budget;        // tokens, for engines that can keep to one
  OrderedJson settings = OrderedJson::object();  // what a response repeats of its request
  std::vector<EngineRequest> requests;           // one for each prompt
  ChatRequest chat;                              // of a conversation
};

// Throws InvalidArgument.
HttpBody read_body(HttpRoute route, std::string_view text, const HttpApiConfig& config);
HttpBody read_completions(std::string_view text, const HttpApiConfig& config);
HttpBody read_chat_completions(std::string_view text, const HttpApiConfig& config);
HttpBody read_messages(std::string_view text, const HttpApiConfig& config);
HttpBody read_count_tokens(std::string_view text, const HttpApiConfig& config);
HttpBody read_responses(std::string_view text, const HttpApiConfig& config);
// What a complaint begins with, as far as it may be a name.
std::string_view first_name(std::string_view message);
// The name of a field that a complaint begins with; empty: none.
std::string field_at_fault(const std::string& message);

}  // namespace quire
