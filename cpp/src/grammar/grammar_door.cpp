#include "grammar/grammar_door.h"

#include "grammar/json_schema.h"

namespace quire {

void GrammarDoor::enter(StructuredOutputsParams& params) {
  if (!params.json && !params.structural_tag) return compiler_->check(grammar_key(params));
  std::string& text = params.json ? params.json->text : params.structural_tag->text;
  GrammarKey key = grammar_key(params);
  {
    const std::lock_guard lock(mutex_);
    const auto found = prepared_.find(key);
    if (found != prepared_.end()) {
      text = found->second;
      return;
    }
  }
  GrammarKey prepared = key;
  std::vector<JsonSchemaPattern> patterns;
  prepared.text = params.json ? prepare_json_schema(text, patterns) : prepare_structural_tag(text, patterns);
  compiler_->check(prepared, patterns);
  text = prepared.text;
  const std::lock_guard lock(mutex_);
  num_bytes_ += key.text.size() + text.size();
  if (num_bytes_ > kMaxBytes) {
    prepared_.clear();
    num_bytes_ = key.text.size() + text.size();
  }
  prepared_.insert_or_assign(std::move(key), text);
}

}  // namespace quire
