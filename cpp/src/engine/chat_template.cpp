#include "quire/chat_template.h"

#include "chat/chat_template.h"
#include "formats/json.h"
#include "quire/error.h"

namespace quire {
namespace {

// Takes a switch out of the options, so that what is left are the template's own variables.
bool take_bool(OrderedJson& options, const char* key, bool otherwise) {
  const auto found = options.find(key);
  if (found == options.end()) return otherwise;
  if (!found->is_boolean())
    throw InvalidArgument(std::string(key) + " must be true or false, got " + found->dump());
  const bool value = found->get<bool>();
  options.erase(found);
  return value;
}

using ContentFormat = chat::ChatTemplate::Options::ContentFormat;

ContentFormat content_format(const OrderedJson& value) {
  if (value == "auto") return ContentFormat::kAuto;
  if (value == "string") return ContentFormat::kString;
  if (value == "openai") return ContentFormat::kParts;
  throw InvalidArgument("chat_template_content_format must be 'auto', 'string' or 'openai', got " +
                        value.dump());
}

ContentFormat take_content_format(OrderedJson& options) {
  const auto found = options.find("chat_template_content_format");
  if (found == options.end()) return ContentFormat::kAuto;
  const OrderedJson value = *found;
  options.erase(found);
  return content_format(value);
}

class JinjaChatTemplate final : public ChatTemplate {
 public:
  explicit JinjaChatTemplate(std::shared_ptr<const chat::ChatTemplate> chat_template)
      : template_(std::move(chat_template)) {}

  std::string render(const std::string& messages_json, const std::string& options_json) const override {
    OrderedJson options = parse_ordered_json(options_json, "chat template options");
    if (!options.is_object()) throw InvalidArgument("chat template options must be a JSON object");
    chat::ChatTemplate::Options chat_options;
    chat_options.continue_final_message = take_bool(options, "continue_final_message", false);
    chat_options.add_generation_prompt =
        take_bool(options, "add_generation_prompt", !chat_options.continue_final_message);
    chat_options.content_format = take_content_format(options);
    if (const auto tools = options.find("tools"); tools != options.end()) {
      if (!tools->is_null()) chat_options.tools_json = tools->dump();
      options.erase(tools);
    }
    if (!options.empty()) chat_options.kwargs_json = options.dump();
    return template_->render(messages_json, chat_options);
  }

  std::string render(const std::string& messages_json, const ChatTemplateOptions& options) const override {
    chat::ChatTemplate::Options chat_options;
    chat_options.continue_final_message = options.continue_final_message;
    chat_options.add_generation_prompt =
        options.add_generation_prompt.value_or(!options.continue_final_message);
    chat_options.content_format = content_format(options.chat_template_content_format);
    chat_options.tools_json = options.tools_json;
    chat_options.kwargs_json = options.kwargs_json;
    return template_->render(messages_json, chat_options);
  }

 private:
  std::shared_ptr<const chat::ChatTemplate> template_;
};

}  // namespace

ChatTemplate::~ChatTemplate() = default;

std::shared_ptr<const ChatTemplate> ChatTemplate::load(const std::string& directory) {
  return std::make_shared<JinjaChatTemplate>(chat::ChatTemplate::load(directory));
}

std::shared_ptr<const ChatTemplate> ChatTemplate::load(const std::string& directory,
                                                       const std::string& source) {
  return std::make_shared<JinjaChatTemplate>(chat::ChatTemplate::load(directory, source));
}

}  // namespace quire
