#include "c_api/arguments.h"

#include <string_view>
#include <utility>

#include "formats/json.h"
#include "quire/fields.h"
#include "quire/utf8.h"

namespace quire::c_api {
namespace {

constexpr size_t kMaxTextBytes = size_t{1} << 30;
constexpr size_t kMaxTokenIds = size_t{1} << 28;

// One document that is an object; null is an empty one.
std::pair<std::string_view, Json> read_object(const char* text, const char* name) {
  const std::string_view given = text == nullptr ? "{}" : text;
  Json object = parse_json(given, name);
  check_unique_members(given, name);
  if (!object.is_object()) throw InvalidArgument(str(name, " must be a JSON object"));
  return {given, std::move(object)};
}

std::string text_prompt(const quire_submission& submission) {
  if (submission.text_size == 0 || submission.text_size > kMaxTextBytes) {
    throw InvalidArgument(
        str("text_size must be between 1 and ", kMaxTextBytes, ", got ", submission.text_size));
  }
  const std::string_view text(submission.text, submission.text_size);
  if (const size_t invalid = find_invalid_utf8(text); invalid != std::string_view::npos)
    throw InvalidArgument(str("text is not valid UTF-8 at byte ", invalid));
  return Json(text).dump();
}

std::string ids_prompt(const quire_submission& submission) {
  if (submission.num_token_ids == 0 || submission.num_token_ids > kMaxTokenIds) {
    throw InvalidArgument(
        str("num_token_ids must be between 1 and ", kMaxTokenIds, ", got ", submission.num_token_ids));
  }
  std::string ids = "[";
  for (size_t i = 0; i < submission.num_token_ids; ++i) {
    if (i > 0) ids += ',';
    ids += std::to_string(submission.token_ids[i]);
  }
  return ids + "]";
}

}  // namespace

EngineSettings engine_settings(const quire_engine_options& options) {
  if (options.model == nullptr || *options.model == '\0')
    throw InvalidArgument("model is missing; give a directory with config.json");
  EngineSettings settings;
  const auto [text, object] = read_object(options.config_json, "config_json");
  const std::pair<const char*, std::string*> own[] = {{"reasoning_parser", &settings.reasoning_parser},
                                                      {"tool_parser", &settings.tool_parser},
                                                      {"chat_template", &settings.chat_template},
                                                      {"served_model_name", &settings.served_model_name}};
  for (const auto& [name, value] : object.items()) {
    if (value.is_null()) continue;
    if (name == "model")
      throw InvalidArgument("config_json has 'model'; it is a field of the options, leave it out");
    const auto* mine = std::find_if(std::begin(own), std::end(own),
                                    [&name = name](const auto& one) { return name == one.first; });
    if (mine == std::end(own)) {
      // A string comes without its quotes, or one that looks like a number would be read as that.
      set_field(settings.engine, name, value.is_string() ? value.get<std::string>() : value.dump());
    } else if (value.is_string()) {
      *mine->second = value.get<std::string>();
    } else {
      throw InvalidArgument(str(name, " must be a string, got ", value.dump().substr(0, 100)));
    }
  }
  settings.engine.model = options.model;
  return settings;
}

std::string lora_name(const char* name) {
  if (name == nullptr || *name == '\0')
    throw InvalidArgument("name is missing; give what requests call the adapter");
  if (const size_t invalid = find_invalid_utf8(name); invalid != std::string_view::npos)
    throw InvalidArgument(str("name is not valid UTF-8 at byte ", invalid));
  return name;
}

LoraRequest lora_request(const quire_lora& lora) {
  if (lora.path == nullptr)
    throw InvalidArgument("path is missing; give a directory with adapter_config.json");
  return {lora_name(lora.name), lora.int_id, lora.path, lora.load_inplace != 0};
}

std::string list_text(const std::vector<LoraInfo>& loras) {
  OrderedJson list = OrderedJson::array();
  for (const LoraInfo& info : loras) {
    list.push_back({{"lora_name", info.lora_name},
                    {"lora_int_id", info.lora_int_id},
                    {"lora_path", info.lora_path},
                    {"rank", info.rank},
                    {"is_loaded", info.is_loaded},
                    {"is_pinned", info.is_pinned},
                    {"num_requests", info.num_requests}});
  }
  return list.dump(-1, ' ', /*ensure_ascii=*/false, OrderedJson::error_handler_t::replace);
}

RequestBody request_body(const quire_submission& submission) {
  const int num_prompts = (submission.text != nullptr ? 1 : 0) +
                          (submission.messages_json != nullptr ? 1 : 0) +
                          (submission.token_ids != nullptr ? 1 : 0);
  if (num_prompts != 1) {
    throw InvalidArgument(str("a submission has one of text, messages_json and token_ids, got ", num_prompts,
                              " of them; leave the others null"));
  }
  const auto [params, object] = read_object(submission.params_json, "params_json");
  for (const char* prompt : {"prompt", "messages"}) {
    if (object.contains(prompt)) {
      throw InvalidArgument(
          str("params_json has '", prompt, "'; the prompt is a field of the submission, leave it out"));
    }
  }
  RequestBody body;
  if (submission.messages_json != nullptr) {
    parse_json(submission.messages_json, "messages_json");  // one document: what follows is none of it
    body = {HttpRoute::kChatCompletions, str("{\"messages\":", submission.messages_json)};
  } else {
    body.text =
        "{\"prompt\":" + (submission.text != nullptr ? text_prompt(submission) : ids_prompt(submission));
  }
  if (!object.empty()) body.text += ',';
  body.text += params.substr(params.find('{') + 1);
  return body;
}

std::vector<Event> split_events(std::string bytes, bool is_stream) {
  std::vector<Event> events;
  constexpr std::string_view kData = "data: ", kEnd = "\n\n";
  if (!is_stream || !std::string_view(bytes).starts_with(kData)) {
    if (!bytes.empty()) events.push_back({.json = std::move(bytes)});
    return events;
  }
  std::string_view rest = bytes;
  while (!rest.empty()) {
    const std::string_view event = rest.substr(0, rest.find(kEnd));
    rest.remove_prefix(std::min(rest.size(), event.size() + kEnd.size()));
    const std::string_view json = event.substr(std::min(event.size(), kData.size()));
    if (json != "[DONE]") events.push_back({.json = std::string(json)});
  }
  return events;
}

}  // namespace quire::c_api
