// The tables of fields (quire/field.h), for documentation and for tests that walk them.
#include <algorithm>
#include <string>
#include <vector>

#include "arguments.h"
#include "bindings.h"
#include "quire/chat.h"
#include "quire/engine.h"
#include "quire/engine_config.h"
#include "quire/fields.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace quire::bindings {
namespace {

template <const auto& table, typename Struct>
void append_fields(nb::list& fields, const char* owner) {
  constexpr auto arguments = arguments_of_table<table>();
  const Struct defaults;
  const std::vector<std::string> in_json = request_field_names();
  auto argument = arguments.begin();
  for_each_field(table, [&](const auto& field) {
    nb::dict described;
    described["struct"] = owner;
    described["name"] = field.name;
    described["type"] = argument->type;
    described["default"] = argument->get(defaults);
    described["range"] = describe(field.range);
    described["min"] = field.range.min;
    described["max"] = field.range.max;
    described["excludes_min"] = field.range.excludes_min;
    described["set_by_clients"] = field.set_by == SetBy::kClients;
    described["in_json"] = std::ranges::find(in_json, field.name) != in_json.end();
    described["doc"] = field.doc;
    fields.append(described);
    ++argument;
  });
}

nb::list engine_config_fields() {
  constexpr auto arguments = arguments_of_table<kEngineConfigFields>();
  const EngineConfig defaults;
  nb::list fields;
  auto argument = arguments.begin();
  for_each_field(kEngineConfigFields, [&](const auto& field) {
    nb::dict described;
    described["struct"] = "EngineConfig";
    described["name"] = field.name;
    described["type"] = argument->type;
    described["default"] = argument->get(defaults);
    described["range"] = describe(field.range);
    described["one_of"] = field.range.one_of;
    described["min"] = field.range.min;
    described["max"] = field.range.max;
    described["excludes_min"] = field.range.excludes_min;
    described["excludes_max"] = field.range.excludes_max;
    described["is_secret"] = field.shown == Shown::kNever;
    described["doc"] = field.doc;
    fields.append(described);
    ++argument;
  });
  return fields;
}

// What `text` is for a field, as Triton's parameters are read; a range is the configuration's to check.
nb::object read_engine_config_field(const std::string& name, const std::string& text) {
  constexpr auto arguments = arguments_of_table<kEngineConfigFields>();
  EngineConfig config;
  set_field(config, name, text);
  for (const Argument<EngineConfig>& argument : arguments) {
    if (name == argument.name) return argument.get(config);
  }
  return nb::none();
}

template <typename T>
constexpr const char* chat_field_type() {
  if constexpr (std::is_same_v<T, JsonText>) return "JSON";
  if constexpr (std::is_same_v<T, std::string>) return "str";
  if constexpr (std::is_same_v<T, std::optional<bool>>) return "bool | None";
  return "bool";
}

// Which Python has no class for: LLM.chat has arguments of these names.
void append_chat_fields(nb::list& fields) {
  const ChatRequest defaults;
  for_each_field(kChatRequestFields, [&](const auto& field) {
    const auto& value = defaults.*field.member;
    using T = std::remove_cvref_t<decltype(value)>;
    nb::dict described;
    described["struct"] = "ChatRequest";
    described["name"] = field.name;
    described["type"] = chat_field_type<T>();
    described["default"] = nb::none();
    if constexpr (std::is_same_v<T, bool>) described["default"] = value;
    described["range"] = "";
    described["set_by_clients"] = true;
    described["doc"] = field.doc;
    fields.append(described);
  });
}

nb::list request_fields() {
  nb::list fields;
  append_fields<kSamplingParamsFields, SamplingParams>(fields, "SamplingParams");
  append_fields<kStructuredOutputsFields, StructuredOutputsParams>(fields, "StructuredOutputsParams");
  append_fields<kEngineRequestFields, EngineRequest>(fields, "EngineRequest");
  append_chat_fields(fields);
  return fields;
}

nb::list json_schema_keywords_as_dicts() {
  constexpr const char* kSupport[] = {"kept", "partly", "annotation", "refused"};
  nb::list keywords;
  for (const JsonSchemaKeyword& keyword : json_schema_keywords()) {
    nb::dict described;
    described["name"] = keyword.name;
    described["support"] = kSupport[static_cast<size_t>(keyword.support)];
    described["note"] = keyword.note;
    keywords.append(described);
  }
  return keywords;
}

}  // namespace

void bind_fields(nb::module_& m) {
  m.def("json_schema_keywords", json_schema_keywords_as_dicts,
        nb::sig("def json_schema_keywords() -> list[dict[str, str]]"),
        "What is made of each keyword of JSON Schema in structured_outputs: kept, partly, annotation or "
        "refused.");
  m.def("request_fields", request_fields, nb::sig("def request_fields() -> list[dict[str, typing.Any]]"),
        "What every door knows of the fields of a request, in their order.");
  m.def("engine_config_fields", engine_config_fields,
        nb::sig("def engine_config_fields() -> list[dict[str, typing.Any]]"),
        "What is known of the fields of EngineConfig, in their order.");
  m.def("read_engine_config_field", read_engine_config_field, "name"_a, "text"_a,
        nb::sig("def read_engine_config_field(name: str, text: str) -> typing.Any"),
        "The value that a text (JSON, or a string without its quotes) is for a field of EngineConfig. Raises "
        "ValueError that names the field, the value and what would do.");
}

}  // namespace quire::bindings
