// Any bytes as tokenizer.json; what loads then encodes and decodes a text that touches most stages.
#include <cstdint>
#include <string_view>

#include "quire/error.h"
#include "token_offsets_check.h"
#include "tokenizer/hf_tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const quire::text::HfTokenizer tokenizer(text, "tokenizer.json");
    constexpr const char* kText =
        "It's 12 e\u0301\u0327 \u1100\u1161 字  \n\t<s>  \U0001F469\u200D\U0001F680 end ";
    const auto ids = tokenizer.encode(kText, true);
    tokenizer.decode(ids, false);
    check_token_offsets(tokenizer, kText, true);
    // The document is a text too.
    if (quire::find_invalid_utf8(text) == text.npos) {
      tokenizer.decode(tokenizer.encode(text, false), true);
      check_token_offsets(tokenizer, text, false);
    }
  } catch (const quire::Error&) {
  }
  return 0;
}
