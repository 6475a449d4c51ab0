#include "chat/chat_template.h"

#include <filesystem>
#include <optional>

#include "chat/ast.h"
#include "chat/interpreter.h"
#include "chat/messages.h"
#include "chat/python_format.h"
#include "chat/python_strings.h"
#include "formats/gguf.h"
#include "formats/json.h"
#include "quire/error.h"
#include "util/str.h"

namespace quire::chat {
namespace {

constexpr int64_t kMaxTemplateBytes = 1 << 20;
constexpr const char* kSpecialTokens[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                          "pad_token", "cls_token", "mask_token"};

// A special token is written as a string or as an object that describes it.
std::optional<std::string> read_special_token(const JsonNode& config, const char* name) {
  const std::optional<JsonNode> token = config.find(name);
  if (!token) return std::nullopt;
  return token->json().is_object() ? token->at("content").string() : token->string();
}

std::map<std::string, std::string> read_special_tokens(const JsonNode& config) {
  std::map<std::string, std::string> tokens;
  for (const char* name : kSpecialTokens) {
    if (auto token = read_special_token(config, name)) tokens[name] = std::move(*token);
  }
  return tokens;
}

// As tokenizer_config.json names them.
std::map<std::string, std::string> read_special_tokens(const GgufHeader& header) {
  std::map<std::string, std::string> tokens;
  if (!header.has("tokenizer.ggml.tokens")) return tokens;
  const auto& texts = header.get_array<std::string>("tokenizer.ggml.tokens");
  for (const auto& [name, key] : {std::pair("bos_token", "tokenizer.ggml.bos_token_id"),
                                  std::pair("eos_token", "tokenizer.ggml.eos_token_id"),
                                  std::pair("unk_token", "tokenizer.ggml.unknown_token_id"),
                                  std::pair("pad_token", "tokenizer.ggml.padding_token_id")}) {
    if (!header.has(key)) continue;
    const auto id = static_cast<size_t>(header.get_int(key, 0, static_cast<int64_t>(texts.size()) - 1));
    tokens[name] = texts[id];
  }
  return tokens;
}

std::optional<std::string> read_if_there(const std::string& path, int64_t max_bytes = kMaxTextFileBytes) {
  if (!is_present(path)) return std::nullopt;
  return read_text_file(path, max_bytes);
}

}  // namespace

struct ChatTemplate::Impl {
  struct Template {
    std::string source;
    Body body;
  };

  // Of a file: its errors begin with it.
  static Template parse(std::string source, const std::string& file) {
    try {
      return parse(std::move(source));
    } catch (const InvalidArgument& error) {
      throw InvalidArgument(str(file, ": ", error.what()));
    }
  }

  static Template parse(std::string source) {
    if (source.size() > size_t{kMaxTemplateBytes}) {
      throw InvalidArgument(str("chat_template: the template is longer than ", kMaxTemplateBytes, " bytes"));
    }
    if (find_invalid_utf8(source) != std::string_view::npos)
      throw InvalidArgument("chat_template: the template is not valid UTF-8");
    Body body = parse_template(source);
    return {std::move(source), std::move(body)};
  }

  const Template& choose(bool has_tools) const {
    if (has_tools && tool_use) return *tool_use;
    if (!main) throw InvalidArgument("chat_template: there is no template named \"default\"");
    return *main;
  }

  std::optional<Template> main;      // "default"
  std::optional<Template> tool_use;  // for requests with tools, if they have their own
  std::map<std::string, std::string> special_tokens;
};

ChatTemplate::ChatTemplate(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
ChatTemplate::~ChatTemplate() = default;

std::shared_ptr<const ChatTemplate> ChatTemplate::from_string(
    std::string_view source, std::map<std::string, std::string> special_tokens) {
  auto impl = std::make_unique<Impl>();
  impl->main = Impl::parse(std::string(source));
  impl->special_tokens = std::move(special_tokens);
  return std::shared_ptr<const ChatTemplate>(new ChatTemplate(std::move(impl)));
}

std::shared_ptr<const ChatTemplate> ChatTemplate::load(const std::string& directory) {
  if (is_gguf_path(directory)) {
    constexpr const char* kKey = "tokenizer.chat_template";
    const GgufFile file(gguf_parts(directory)[0]);
    if (!file.header().has(kKey))
      throw InvalidArgument(str(directory, ": no chat template: no key '", kKey, "'"));
    return from_string(file.header().get_string(kKey), read_special_tokens(file.header()));
  }
  const std::filesystem::path root(directory);
  auto impl = std::make_unique<Impl>();
  std::string main_path = (root / "chat_template.jinja").string();
  std::string tool_use_path = (root / "additional_chat_templates" / "tool_use.jinja").string();
  std::optional<std::string> main = read_if_there(main_path, kMaxTemplateBytes);
  std::optional<std::string> tool_use = read_if_there(tool_use_path, kMaxTemplateBytes);
  const std::string config_path = (root / "tokenizer_config.json").string();
  if (const auto text = read_if_there(config_path)) {
    const Json document = parse_json(*text, config_path);
    const JsonNode config(document, config_path);
    impl->special_tokens = read_special_tokens(config);
    const std::optional<JsonNode> node = config.find("chat_template");
    if (node && !main && !tool_use) {
      main_path = tool_use_path = config_path;
      if (node->json().is_array()) {
        for (const JsonNode& entry : node->elements()) {
          const std::string& name = entry.at("name").string();
          if (name == "default") main = entry.at("template").string();
          if (name == "tool_use") tool_use = entry.at("template").string();
        }
      } else {
        main = node->string();
      }
    }
  }
  if (!main && !tool_use) {
    throw InvalidArgument(str(directory,
                              ": no chat template: neither chat_template.jinja nor \"chat_template\" in ",
                              "tokenizer_config.json is there"));
  }
  if (main) impl->main = Impl::parse(std::move(*main), main_path);
  if (tool_use) impl->tool_use = Impl::parse(std::move(*tool_use), tool_use_path);
  return std::shared_ptr<const ChatTemplate>(new ChatTemplate(std::move(impl)));
}

std::shared_ptr<const ChatTemplate> ChatTemplate::load(const std::string& directory,
                                                       std::string_view source) {
  if (is_gguf_path(directory))
    return from_string(source, read_special_tokens(GgufFile(gguf_parts(directory)[0]).header()));
  const std::string config_path = (std::filesystem::path(directory) / "tokenizer_config.json").string();
  const auto text = read_if_there(config_path);
  if (!text) return from_string(source);
  const Json document = parse_json(*text, config_path);
  return from_string(source, read_special_tokens(JsonNode(document, config_path)));
}

std::string ChatTemplate::render(std::string_view messages_json, const Options& options) const {
  if (options.continue_final_message && options.add_generation_prompt) {
    throw InvalidArgument("continue_final_message and add_generation_prompt cannot both be set");
  }
  Values messages = read_messages(messages_json);
  const Value tools = options.tools_json.empty() ? Value() : parse_json_value(options.tools_json, "tools");
  if (!tools.is(Value::Kind::kNone) && !tools.is(Value::Kind::kList)) {
    throw InvalidArgument("tools must be an array of objects");
  }
  const Impl::Template& chosen = impl_->choose(/*has_tools=*/!tools.is(Value::Kind::kNone));
  Dict variables;
  const auto set = [&](std::string_view name, Value value) { variables.set(Value(name), std::move(value)); };
  for (const auto& [name, token] : impl_->special_tokens) set(name, Value(token));
  set("documents", Value());
  if (!options.kwargs_json.empty()) {
    const Value kwargs = parse_json_value(options.kwargs_json, "chat template arguments");
    if (!kwargs.is(Value::Kind::kDict)) throw InvalidArgument("chat template arguments must be an object");
    for (const auto& [name, value] : kwargs.as_dict().items) {
      for (const char* taken : {"messages", "tools", "add_generation_prompt"}) {
        if (name.as_string() == taken)
          throw InvalidArgument(str("chat template arguments cannot set '", taken, "'"));
      }
      variables.set(name, value);
    }
  }
  set("tools", tools);
  set("add_generation_prompt", Value(options.add_generation_prompt));

  if (options.content_format != Options::ContentFormat::kParts && has_parts(messages)) {
    const bool joins =
        options.content_format == Options::ContentFormat::kString || !writes_parts([&](Values probe) {
          Dict with_probe = variables;
          with_probe.set(Value(std::string_view("messages")), Value::list(std::move(probe)));
          return Interpreter().render(chosen.body, with_probe);
        });
    if (joins) join_parts(messages);
  }
  std::string final_content;
  if (options.continue_final_message) {
    if (chosen.source.find("content") == std::string::npos) {
      throw InvalidArgument("continue_final_message needs a chat template that uses \"content\"");
    }
    final_content = mark_final_message(messages);
  }
  set("messages", Value::list(std::move(messages)));

  std::string rendered = Interpreter().render(chosen.body, variables);
  return options.continue_final_message ? cut_at_mark(std::move(rendered), final_content) : rendered;
}

}  // namespace quire::chat
