// Reading JSON files whose author should be told what is wrong with them.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace quire {

using Json = nlohmann::json;

// The bytes of a file. Throws InvalidArgument naming the path when it cannot be read, is none or is larger:
// a document takes up to sixty times its text.
inline constexpr int64_t kMaxTextFileBytes = 128 << 20;
std::string read_text_file(const std::string& path, int64_t max_bytes = kMaxTextFileBytes);

// Whether something has this path, even a link that leads nowhere: reading it then says what is wrong.
bool is_present(const std::string& path);

// How deep arrays and objects may stand in each other. Deeper text is refused before it is parsed, because
// whoever walks, compares, copies or prints a document does it recursively.
inline constexpr int kMaxJsonDepth = 200;

// Throws InvalidArgument, beginning with `where`, unless `text` is one JSON document in valid UTF-8, nested
// at most kMaxJsonDepth deep.
Json parse_json(std::string_view text, const std::string& where);

// Throws InvalidArgument when an object of the document has a member twice, of which a parser would drop one:
// "<where>: 'weight_map.a' is there twice". What is no JSON is not complained of.
void check_unique_members(std::string_view text, const std::string& where);

// Parses as parse_json does, but gives a document that is_discarded() instead of throwing.
Json try_parse_json(std::string_view text);

// The text of the member `key` of an object, or nothing when it has none, or writes its name with escapes.
// `object` is valid JSON.
std::string_view find_member_text(std::string_view object, std::string_view key);

// A document with the members of every object in the order they were written.
using OrderedJson = nlohmann::ordered_json;
OrderedJson parse_ordered_json(std::string_view text, const std::string& where);

// Told of the parts of a document in their order, which Json does not keep. What it throws passes through.
class JsonHandler {
 public:
  virtual ~JsonHandler() = default;
  virtual void on_null() = 0;
  virtual void on_boolean(bool value) = 0;
  virtual void on_integer(int64_t value) = 0;
  virtual void on_float(double value) = 0;
  virtual void on_string(std::string value) = 0;
  virtual void on_key(std::string key) = 0;
  virtual void on_object_start() = 0;
  virtual void on_object_end() = 0;
  virtual void on_array_start() = 0;
  virtual void on_array_end() = 0;
};

// Parses as parse_json does, and refuses integers beyond 64 bits as well.
void parse_json(std::string_view text, const std::string& where, JsonHandler& handler);

// A value in a document, with its place: complaints read "tokenizer.json: model.type must be a string".
// Borrows the value, which must outlive it.
class JsonNode {
 public:
  JsonNode(const Json& value, std::string file) : JsonNode(value, std::move(file), "") {}

  const Json& json() const { return *value_; }
  const std::string& path() const { return path_; }

  // The member `key`; throws when this is no object or has no such member.
  JsonNode at(std::string_view key) const;
  // The member `key`, or nothing when it is absent or null.
  std::optional<JsonNode> find(std::string_view key) const;
  // The elements of an array.
  std::vector<JsonNode> elements() const;

  // The value as the type asked for; anything else throws.
  const std::string& string() const;
  bool boolean() const;
  int64_t integer(int64_t min, int64_t max) const;
  const Json& object() const;

  bool boolean_or(std::string_view key, bool absent) const;

  // Throws unless every member of this object is named here: what we do not know, we do not guess.
  void allow_only(std::initializer_list<std::string_view> keys) const;

  [[noreturn]] void fail(const std::string& message) const;

 private:
  JsonNode(const Json& value, std::string file, std::string path)
      : value_(&value), file_(std::move(file)), path_(std::move(path)) {}

  const Json* value_;
  std::string file_;
  std::string path_;
};

}  // namespace quire
