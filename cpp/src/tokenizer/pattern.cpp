#include "tokenizer/pattern.h"

#include "quire/error.h"

namespace quire::text {

Pattern::Pattern(const JsonNode& node) {
  node.allow_only({"String", "Regex"});
  if (node.find("String")) {
    literal_ = node.at("String").string();
    return;
  }
  const JsonNode source = node.at("Regex");
  try {
    regex_.emplace(source.string());
  } catch (const InvalidArgument& error) {
    source.fail(error.what());
  }
}

}  // namespace quire::text
