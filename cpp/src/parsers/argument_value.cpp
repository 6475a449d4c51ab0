#include "parsers/argument_value.h"

#include <utility>

#include "parsers/stage.h"

namespace quire::parsers {

void ArgumentValue::begin(std::optional<bool> is_string, const OrderedJson* schema, ChatOutput& out) {
  schema_ = schema;
  is_json_ = is_string.has_value() && !*is_string;
  streams_ = is_string.has_value() ? *is_string : is_only_string(schema);
  at_begin_ = true;
  line_break_ = false;
  held_.clear();
  if (streams_) out.arguments('"');
}

void ArgumentValue::stream(char byte, ChatOutput& out) {
  if (std::exchange(at_begin_, false) && byte == '\n') return;
  if (std::exchange(line_break_, byte == '\n')) out.string_argument('\n');
  if (byte != '\n') out.string_argument(byte);
}

void ArgumentValue::put(char byte, ChatOutput& out) {
  if (streams_) return stream(byte, out);
  held_ += byte;
  if (held_.size() < kMaxHeldBytes) return;
  // Too long to wait for: a string, whatever it was to be.
  streams_ = true;
  out.arguments('"');
  for (const char each : std::exchange(held_, {})) stream(each, out);
}

void ArgumentValue::end(ChatOutput& out) {
  if (streams_) return out.arguments('"');
  std::string_view text = held_;
  if (text.starts_with('\n')) text.remove_prefix(1);
  if (text.ends_with('\n')) text.remove_suffix(1);
  out.arguments(is_json_ ? json_value(text) : typed_value(text, schema_));
}

}  // namespace quire::parsers
