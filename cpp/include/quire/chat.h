// Conversations, as OpenAI's API has them: a chat request becomes a prompt and what its answer is held to,
// and the answer an assistant's message, whole or as it streams.
//
//   quire::ChatRequest chat;
//   chat.messages.text = R"([{"role": "user", "content": "Hello!"}])";
//   quire::EngineRequest request;
//   const quire::ChatAnswerOptions options = quire::prepare_chat(engine, format, chat, request);
//   const auto outputs = engine.generate({request});
//   quire::ChatMessageWriter writer(options);
//   writer.message(outputs[0].outputs[0].text);
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>

#include "quire/chat_parsers.h"
#include "quire/engine.h"
#include "quire/export.h"
#include "quire/field.h"
#include "quire/request_output.h"
#include "quire/structured_outputs.h"

namespace quire {

// What is asked of a model in a conversation. JSON is text; an empty one is not given.
struct ChatRequest {
  JsonText messages;
  JsonText tools;
  JsonText tool_choice;
  bool parallel_tool_calls = true;

  std::string chat_template;
  std::string chat_template_content_format;
  JsonText chat_template_kwargs;
  std::optional<bool> add_generation_prompt;
  bool continue_final_message = false;

  bool operator==(const ChatRequest&) const = default;
};

// Every field, in the order of the struct.
inline constexpr std::tuple kChatRequestFields{
    Field{
        "messages", &ChatRequest::messages,
        "the conversation: an array of {\"role\", \"content\", ...}; without it the prompt is the caller's. "
        "Arguments of tool calls may be objects or their text"},
    Field{"tools", &ChatRequest::tools,
          "an array of {\"type\": \"function\", \"function\": {\"name\", \"parameters\"}}"},
    Field{
        "tool_choice", &ChatRequest::tool_choice,
        "\"auto\" (unless given, where there are tools), \"none\", \"required\", or {\"type\": \"function\", "
        "\"function\": {\"name\": ...}}"},
    Field{"parallel_tool_calls", &ChatRequest::parallel_tool_calls, "false: at most one call"},
    Field{"chat_template", &ChatRequest::chat_template, "Jinja to use instead of the model's own"},
    Field{
        "chat_template_content_format", &ChatRequest::chat_template_content_format,
        "\"auto\" joins text parts if the template takes only strings, \"string\" always, \"openai\" never"},
    Field{"chat_template_kwargs", &ChatRequest::chat_template_kwargs,
          "an object of further variables for the template"},
    Field{"add_generation_prompt", &ChatRequest::add_generation_prompt,
          "ends the prompt with the start of an answer; true unless continue_final_message is"},
    Field{"continue_final_message", &ChatRequest::continue_final_message,
          "the answer goes on with the last message"},
};

// How the completions of a request are read.
struct ChatAnswerOptions {
  std::shared_ptr<const ChatFormat> format;  // null: all of an answer is content
  ChatParserOptions parser;
  bool parallel_tool_calls = true;
  bool is_named_choice = false;  // tool_choice names the function
};

// Fills in what `chat` says of `request`: the prompt, rendered with its own special tokens, and for a
// tool_choice that forces calls structured_outputs. Where calls are to be read, skip_special_tokens is the
// format's. `format` is how the model writes calls and reasoning, made with the model's tokenizer; null: in
// no known way. The messages' prompt does not go with one in `request`; the template's fields need messages.
// Throws InvalidArgument naming the field, its value and what would do; `request` may be changed then.
// Thread-safe.
QUIRE_API ChatAnswerOptions prepare_chat(const EngineBase& engine, std::shared_ptr<const ChatFormat> format,
                                         const ChatRequest& chat, EngineRequest& request);

// Writes one completion as OpenAI's assistant message (JSON): "role", "content" (null beside calls without
// text), and where there is any "reasoning" and "tool_calls". Not thread-safe.
class QUIRE_API ChatMessageWriter {
 public:
  // Throws InvalidArgument, naming the field, for tools that are none.
  explicit ChatMessageWriter(const ChatAnswerOptions& options);
  ~ChatMessageWriter();
  ChatMessageWriter(ChatMessageWriter&&) noexcept;
  ChatMessageWriter& operator=(ChatMessageWriter&&) noexcept;

  // What is new with this text (whole characters). `finished`: it is the last. Instead of what follows.
  ChatDelta read(std::string_view text, bool finished);
  // A delta of a stream: what is new with this text (whole characters), "{}" when nothing is. The first one
  // has the role, entries of "tool_calls" have their "index", and their ids and names once. `finished`: the
  // text is the last.
  std::string delta(std::string_view text, bool finished);
  // The whole message of a whole answer. Instead of delta().
  std::string message(std::string_view text);

  // How the answer ended, by the engine's reason: "tool_calls" for an answer that ended by itself with calls,
  // unless tool_choice names the function, as in OpenAI's API; else finish_reason_name.
  const char* finish_reason(FinishReason reason) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire
