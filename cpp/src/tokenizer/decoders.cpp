#include "tokenizer/byte_level.h"
#include "tokenizer/pipeline.h"
#include "util/str.h"

namespace quire::text {
namespace {

class ByteLevelDecoder final : public Decoder {
 public:
  explicit ByteLevelDecoder(const JsonNode& section) {
    section.allow_only({"type", "add_prefix_space", "trim_offsets", "use_regex"});  // none matters here
  }
  // A token that is not written in the alphabet (an added token with a space, say) stands for itself.
  std::string token_bytes(std::string_view token) const override {
    return from_byte_level(token).value_or(std::string(token));
  }
  std::string_view separator() const override { return ""; }
};

// What `tokenizers` does without a decoder.
class PlainDecoder final : public Decoder {
 public:
  std::string token_bytes(std::string_view token) const override { return std::string(token); }
  std::string_view separator() const override { return " "; }
};

}  // namespace

std::unique_ptr<const Decoder> make_decoder(const std::optional<JsonNode>& section) {
  if (!section) return std::make_unique<PlainDecoder>();
  const std::string& type = section->at("type").string();
  if (type == "ByteLevel") return std::make_unique<ByteLevelDecoder>(*section);
  if (type != "Sequence") fail_unsupported_type(*section, "ByteLevel, Sequence");
  section->allow_only({"type", "decoders"});
  const std::vector<JsonNode> stages = section->at("decoders").elements();
  if (stages.size() != 1) section->at("decoders").fail("is supported with exactly one element");
  return make_decoder(stages[0]);
}

}  // namespace quire::text
