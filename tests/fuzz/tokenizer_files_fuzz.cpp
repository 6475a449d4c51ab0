// Any bytes as tokenizer.model, as ranks of tiktoken and as tekken.json; what loads then encodes and decodes.
#include <cstdint>
#include <string_view>

#include "quire/error.h"
#include "quire/utf8.h"
#include "token_offsets_check.h"
#include "tokenizer/tokenizer_directory.h"

namespace {

template <typename Read>
void try_out(const Read& read, std::string_view bytes) {
  try {
    const auto tokenizer = read();
    constexpr const char* kText = "It's 12 e\u0301 字  \n<s>\u2581 \U0001F680 end ";
    const auto ids = tokenizer->encode(kText, true);
    tokenizer->decode(ids, false);
    check_token_offsets(*tokenizer, kText, false);
    if (quire::find_invalid_utf8(bytes) == bytes.npos) {
      tokenizer->decode(tokenizer->encode(bytes, false), true);
      check_token_offsets(*tokenizer, bytes, true);
    }
  } catch (const quire::Error&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace quire::text;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  try_out([&] { return read_sentencepiece(bytes, "tokenizer.model", nullptr); }, bytes);
  try_out([&] { return read_tiktoken(bytes, "gpt2.tiktoken", nullptr); }, bytes);
  try_out([&] { return read_tekken(bytes, "tekken.json"); }, bytes);
  return 0;
}
