#include "quire/fields.h"

#include <type_traits>
#include <utility>

#include "engine/field_value.h"
#include "engine/json_fields.h"
#include "util/str.h"

namespace quire {
namespace {

// vLLM's fields that clients write out of habit; anything but these values would change the result.
struct NeutralField {
  const char* name;
  const char* json;
};
constexpr NeutralField kNeutralFields[] = {
    {"best_of", "1"},
    {"use_beam_search", "false"},
};

[[noreturn]] void fail_unknown(const std::vector<std::string>& known, const std::string& name) {
  std::string names;
  for (const std::string& other : known) names += (names.empty() ? "" : ", ") + other;
  throw InvalidArgument(str("'", name.substr(0, 100), "' is not a field we know; there are ", names));
}

// Calls `visit` with each field that clients may name, and the part of the request that has it.
template <typename Visit>
void for_each_client_field(EngineRequest& request, Visit&& visit) {
  const auto visit_clients = [&](auto& part, const auto& table) {
    for_each_field(table, [&](const auto& field) {
      if (field.set_by == SetBy::kClients) visit(field, part.*field.member);
    });
  };
  visit_clients(request.sampling_params, kSamplingParamsFields);
  visit_clients(request, kEngineRequestFields);
}

template <typename T>
void read_field(Also, const FieldValue& value, T& field) {
  value.read(field);
}
void read_field(Also, const FieldValue&, RequestOutputKind&) {}  // no client's
void read_field(Also also, const FieldValue& value, std::optional<int32_t>& field) {
  bool wanted = false;
  if (also != Also::kTrueForOne || !value.read_if_boolean(wanted)) return value.read(field);
  field = wanted ? std::optional<int32_t>(1) : std::nullopt;
}

// `chat`: null where a door knows of no conversations.
void set_json_field(EngineRequest& request, ChatRequest* chat, const std::string& name, const Json& value,
                    std::string_view text) {
  bool found = false;
  for_each_client_field(request, [&](const auto& field, auto& target) {
    if (name != field.name) return;
    found = true;
    if (!value.is_null()) read_field(field.also, FieldValue(value, name, text), target);
  });
  if (found) return;
  if (chat) {
    for_each_field(kChatRequestFields, [&](const auto& field) {
      if (name != field.name) return;
      found = true;
      if (!value.is_null()) FieldValue(value, name, text).read(chat->*field.member);
    });
    if (found) return;
  }
  for (const NeutralField& neutral : kNeutralFields) {
    if (name != neutral.name) continue;
    Json parsed;
    if (value.is_string()) parsed = try_parse_json(value.get_ref<const std::string&>());
    const Json& given = value.is_string() ? parsed : value;
    if (value.is_null() || given == Json::parse(neutral.json)) return;
    throw InvalidArgument(str(name, " is not supported; leave it out, or give ", neutral.json));
  }
  std::vector<std::string> known = request_field_names();
  if (chat) for_each_field(kChatRequestFields, [&](const auto& field) { known.emplace_back(field.name); });
  fail_unknown(known, name);
}

void set_json_fields(EngineRequest& request, ChatRequest* chat, const std::string& json,
                     std::string_view where, std::string_view except) {
  const Json object = parse_json(json, std::string(where));
  if (!object.is_object()) throw InvalidArgument(str(where, " must be a JSON object"));
  set_fields(request, chat, object, json, [&](const std::string& name) { return name == except; });
}

}  // namespace

void set_fields(EngineRequest& request, ChatRequest* chat, const Json& object, std::string_view text,
                const std::function<bool(const std::string&)>& passes_over) {
  for (const auto& [name, value] : object.items()) {
    if (passes_over(name)) continue;
    const bool has_order = value.is_object() || (value.is_array() && chat != nullptr);
    set_json_field(request, chat, name, value, has_order ? find_member_text(text, name) : std::string_view());
  }
}

void set_field(EngineRequest& request, const std::string& name, const std::string& json) {
  set_json_field(request, nullptr, name, parse_json(json, name), json);
}

void set_fields(EngineRequest& request, const std::string& json, std::string_view where) {
  set_json_fields(request, nullptr, json, where, {});
}

void set_field(EngineRequest& request, ChatRequest& chat, const std::string& name, const std::string& json) {
  set_json_field(request, &chat, name, parse_json(json, name), json);
}

void set_fields(EngineRequest& request, ChatRequest& chat, const std::string& json, std::string_view where,
                std::string_view except) {
  set_json_fields(request, &chat, json, where, except);
}

std::vector<std::string> request_field_names() {
  std::vector<std::string> names;
  EngineRequest request;
  for_each_client_field(request, [&](const auto& field, const auto&) { names.emplace_back(field.name); });
  return names;
}

void set_field(EngineConfig& config, const std::string& name, const std::string& text) {
  bool found = false;
  for_each_field(kEngineConfigFields, [&](const auto& field) {
    if (name != field.name) return;
    found = true;
    auto& target = config.*field.member;
    Json value = text;
    if constexpr (std::is_same_v<decltype(target), std::vector<std::string>&>) {
      // An array, or one string.
      if (Json list = try_parse_json(text); list.is_array()) value = std::move(list);
    }
    FieldValue(value, name).read(target);
  });
  if (!found) fail_unknown(engine_config_field_names(), name);
}

std::vector<std::string> engine_config_field_names() {
  std::vector<std::string> names;
  for_each_field(kEngineConfigFields, [&](const auto& field) { names.emplace_back(field.name); });
  return names;
}

}  // namespace quire
