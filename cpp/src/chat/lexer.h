// The tokens of a template.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace quire::chat {

struct Token {
  enum class Kind {
    kData,        // text between the tags, with white space already trimmed
    kBlockBegin,  // {%
    kBlockEnd,
    kVariableBegin,  // {{
    kVariableEnd,
    kName,
    kString,  // unescaped
    kInteger,
    kFloat,
    kOperator,
    kEnd,  // of the template
  };
  Kind kind;
  std::string text;
  int line = 0;
  int64_t integer = 0;
  double real = 0;

  bool is(Kind k) const { return kind == k; }
  bool is_name(std::string_view name) const { return kind == Kind::kName && text == name; }
  bool is_operator(std::string_view op) const { return kind == Kind::kOperator && text == op; }
};

// The tokens, ending in kEnd. White space around tags goes as Jinja has it with trim_blocks and lstrip_blocks
// on and keep_trailing_newline off, which is how transformers sets it. Throws InvalidArgument with the line.
std::vector<Token> tokenize_template(std::string_view source);

// Throws InvalidArgument: "chat_template: line 3: ...".
[[noreturn]] void fail_at_line(int line, const std::string& message);

}  // namespace quire::chat
