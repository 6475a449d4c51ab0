#include "grammar/grammar.h"
#include "util/str.h"

namespace quire {
namespace {

// As a string of EBNF.
std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    switch (c) {
      case '"': out += "\\\""; break;
      case '\\': out += "\\\\"; break;
      case '\n': out += "\\n"; break;
      case '\r': out += "\\r"; break;
      case '\t': out += "\\t"; break;
      default:
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
          constexpr const char* kDigits = "0123456789abcdef";
          out += str("\\x", kDigits[(c >> 4) & 0xf], kDigits[c & 0xf]);
        } else {
          out += c;
        }
    }
  }
  return out + "\"";
}

// vLLM tells Lark from EBNF by the sign that defines a rule, in the first line that has either.
bool is_lark(const std::string& grammar) {
  bool at_line_start = true, in_comment = false;
  for (size_t i = 0; i < grammar.size(); ++i) {
    const char c = grammar[i];
    if (c == '\n') {
      at_line_start = true;
      in_comment = false;
      continue;
    }
    if (at_line_start && (c == '#' || (c == '/' && i + 1 < grammar.size() && grammar[i + 1] == '/')))
      in_comment = true;
    if (c != ' ' && c != '\t') at_line_start = false;
    if (in_comment) continue;
    if (c == ':') return grammar.compare(i, 3, "::=") != 0;
  }
  return false;
}

}  // namespace

GrammarKey grammar_key(const StructuredOutputsParams& params) {
  GrammarKey key;
  key.any_whitespace = !params.disable_any_whitespace;
  if (params.json) {
    key.text = params.json->text;
  } else if (params.json_object) {
    key.text = R"({"type": "object", "additionalProperties": true})";
  } else if (params.structural_tag) {
    key = {GrammarKind::kStructuralTag, true, params.structural_tag->text};
  } else if (params.regex) {
    key = {GrammarKind::kRegex, true, *params.regex};
  } else if (params.grammar) {
    key = {is_lark(*params.grammar) ? GrammarKind::kLark : GrammarKind::kEbnf, true, *params.grammar};
  } else if (params.choice) {
    key = {GrammarKind::kEbnf, true, "root ::= "};
    for (const std::string& choice : *params.choice) {
      if (&choice != params.choice->data()) key.text += " | ";
      key.text += quoted(choice);
    }
  }
  return key;
}

}  // namespace quire
