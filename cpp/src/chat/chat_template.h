// Chat templates: from messages to the text of a prompt.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>

namespace quire::chat {

// A chat template of a model directory, which is a Jinja template, run in C++. What it renders equals what
// `apply_chat_template` of Hugging Face transformers renders. Thread-safe: const after loading.
//
// Supported is the part of Jinja that chat templates use (see ast.h for the statements, filters.cpp and
// sequence_filters.cpp for the filters). Everything else is refused when the template is loaded, by name:
// "chat_template: line 3: the statement 'include' is not supported".
class ChatTemplate {
 public:
  struct Options {
    // Ends the prompt with the start of the assistant's answer.
    bool add_generation_prompt = true;
    // Ends the prompt where the last message ends, so that the model goes on with it. Not together with
    // add_generation_prompt.
    bool continue_final_message = false;
    // A JSON array of tool descriptions; empty: none are offered.
    std::string tools_json;
    // How a content that is a list of parts is given to the template: as it is, or as one string; kAuto: as
    // it is, if the template can write it.
    enum class ContentFormat { kParts, kString, kAuto };
    ContentFormat content_format = ContentFormat::kParts;
    // A JSON object of further variables for the template ("enable_thinking", "documents"); empty: none.
    std::string kwargs_json;
  };

  // Reads chat_template.jinja and additional_chat_templates/tool_use.jinja, or else "chat_template" of
  // tokenizer_config.json (a string, or a list of {name, template}); and the special tokens from
  // tokenizer_config.json. Throws InvalidArgument when there is no template, or one that is not supported.
  static std::shared_ptr<const ChatTemplate> load(const std::string& directory);
  // The special tokens are the directory's, the template is not.
  static std::shared_ptr<const ChatTemplate> load(const std::string& directory, std::string_view source);
  // `special_tokens` are variables such as bos_token.
  static std::shared_ptr<const ChatTemplate> from_string(
      std::string_view source, std::map<std::string, std::string> special_tokens = {});

  ~ChatTemplate();

  // `messages_json` is an array of objects with a "role" and, unless they have tool calls or the like, a
  // "content": a string or a list of parts. Throws InvalidArgument, naming the message and the field
  // ("messages[2].role"), for messages that are none, and for those that the template refuses.
  std::string render(std::string_view messages_json, const Options& options) const;
  std::string render(std::string_view messages_json) const { return render(messages_json, Options()); }

 private:
  struct Impl;
  explicit ChatTemplate(std::unique_ptr<const Impl> impl);
  std::unique_ptr<const Impl> impl_;
};

}  // namespace quire::chat
