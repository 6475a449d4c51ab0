// Chat templates: from messages to the text of a prompt.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "quire/export.h"

namespace quire {

// What render() takes as one JSON object, too.
struct ChatTemplateOptions {
  std::optional<bool> add_generation_prompt;  // absent: unless continue_final_message
  bool continue_final_message = false;
  std::string chat_template_content_format = "auto";
  std::string tools_json;   // an array; empty: none are offered
  std::string kwargs_json;  // an object of whatever else the template reads; empty: nothing
};

// A model directory's chat template (Jinja), run in C++. It renders what transformers' apply_chat_template
// renders. Syntax that is not supported is refused by name when the template is loaded. Thread-safe.
class QUIRE_API ChatTemplate {
 public:
  virtual ~ChatTemplate();

  // Reads chat_template.jinja, else "chat_template" of tokenizer_config.json. Throws InvalidArgument when
  // there is none, or for syntax that is not supported.
  static std::shared_ptr<const ChatTemplate> load(const std::string& directory);
  // The directory's special tokens with the template `source`.
  static std::shared_ptr<const ChatTemplate> load(const std::string& directory, const std::string& source);

  // `messages_json` is an array of {"role": ..., "content": ...}. `options_json` is an object:
  // add_generation_prompt (default true), continue_final_message (default false), tools (an array),
  // chat_template_content_format ("auto": a content that is a list of text parts becomes one string, a line
  // for each, if the template takes only strings; "string": always; "openai": never, as transformers), and
  // whatever else the template reads. Throws InvalidArgument naming the message and the field.
  virtual std::string render(const std::string& messages_json,
                             const std::string& options_json = "{}") const = 0;
  virtual std::string render(const std::string& messages_json, const ChatTemplateOptions& options) const = 0;
};

}  // namespace quire
