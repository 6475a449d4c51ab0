// Tables of the fields that bodies may have, and how bodies are read by them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/field_value.h"
#include "formats/json.h"
#include "http_api/request_body.h"

namespace quire {

// A field of the API that is none of a request's. `read` is null for those that are read with others, or
// change nothing here: what a service keeps, bills or routes by.
struct BodyField {
  const char* name;
  const char* json_schema;
  const char* doc;
  // `text`: the value's, where it is an object or an array.
  void (*read)(const Json& value, std::string_view text, HttpBody& body, EngineRequest& request);
};

// A field of the API that would change the answer, if it could be kept to.
struct RefusedField {
  const char* name;
  const char* reason;
};

// What a route's bodies have beside the fields of requests and conversations. A field here hides one of
// those.
struct RouteFields {
  std::vector<BodyField> fields;
  std::vector<RefusedField> refused;
  std::vector<std::string> required;
};
const RouteFields& route_fields(HttpRoute route);

// One for each route.
RouteFields completions_fields();
RouteFields chat_fields();
RouteFields messages_fields();
RouteFields responses_fields();

// Parts of tables.
extern const std::vector<BodyField> kEveryRoutesFields;
extern const std::vector<BodyField> kOpenAiFields;   // what OpenAI's services keep books with
extern const std::vector<BodyField> kChoicesFields;  // of answers with choices
extern const std::vector<RefusedField> kOneAnswerOnly;
std::vector<BodyField> joined(std::initializer_list<std::vector<BodyField>> tables);

inline constexpr const char* kBooleanSchema = R"({"type": "boolean"})";
inline constexpr const char* kStringSchema = R"({"type": "string"})";
inline constexpr const char* kObjectSchema = R"({"type": "object"})";

#define QUIRE_BODY_FLAG(name, doc)                                                                        \
  BodyField {                                                                                             \
    #name, kBooleanSchema, doc, [](const Json& value, std::string_view, HttpBody& body, EngineRequest&) { \
      read_value(value, #name, body.name);                                                                \
    }                                                                                                     \
  }

template <typename T>
void read_value(const Json& value, const std::string& name, T& field) {
  FieldValue(value, name).read(field);
}

Json read_object(std::string_view text);
// A field's value with its members in order; `text` as BodyField::read has it.
OrderedJson ordered(const Json& value, std::string_view text);
// The member, unless it is null.
const Json* find_given(const Json& object, const char* name);

// All of `object` but what is read with others. `chat`: null for completions.
EngineRequest read_fields(HttpRoute route, const Json& object, std::string_view text,
                          const HttpApiConfig& config, HttpBody& body, ChatRequest* chat);

// What the answer must look like. Throws InvalidArgument, naming `field`, for a second one.
void set_structured_outputs(StructuredOutputsParams params, const std::string& field, EngineRequest& request);
// A variable of the chat template, unless the body sets it itself.
void set_template_variable(ChatRequest& chat, const std::string& name, const OrderedJson& value);

}  // namespace quire
