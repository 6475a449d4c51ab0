// vocab.json, merges.txt, tokenizer_config.json and generation_config.json of one directory, with a NUL
// between them: the tokenizer, the chat template and the defaults of requests that they make, or an error.
#include <array>
#include <cstdint>
#include <fstream>
#include <string>
#include <string_view>

#include "chat/chat_template.h"
#include "quire/error.h"
#include "quire/generation_config.h"
#include "scratch_directory.h"
#include "token_offsets_check.h"
#include "tokenizer/tokenizer_directory.h"

namespace {

constexpr std::array kFiles{"vocab.json", "merges.txt", "tokenizer_config.json", "generation_config.json"};

// What mutations must have reached, or they no longer test what they should.
bool has_tokenizer = false, has_template = false, has_defaults = false;
bool was_wrong_about_vocab = false, was_wrong_about_defaults = false;

const std::string& directory() {
  static const quire::ScratchDirectory scratch;
  static const std::string path = scratch.path().string();
  return path;
}

void write_files(std::string_view bytes) {
  for (const char* name : kFiles) {
    const size_t end = std::min(bytes.find('\0'), bytes.size());
    std::ofstream(directory() + "/" + name, std::ios::binary) << bytes.substr(0, end);
    bytes.remove_prefix(std::min(end + 1, bytes.size()));
  }
}

template <typename Read>
std::string refusal(const Read& read) {
  try {
    read();
    return "";
  } catch (const quire::Error& error) {
    return error.what();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  write_files({reinterpret_cast<const char*>(data), size});
  // Most inputs have no vocabulary: how text is split takes a hundred times as long as all else.
  const bool has_vocab = size > 0 && data[0] != 0;
  const std::string no_tokenizer = !has_vocab ? "none" : refusal([] {
    const auto tokenizer = quire::text::load_tokenizer(directory());
    constexpr const char* kText = "It's 12 e\u0301 字  \n<s> \U0001F680 end ";
    tokenizer->decode(tokenizer->encode(kText, true), false);
    check_token_offsets(*tokenizer, kText, true);
  });
  const std::string no_template = refusal(
      [] { quire::chat::ChatTemplate::load(directory())->render(R"([{"role": "user", "content": "a"}])"); });
  const std::string no_defaults = refusal([] {
    quire::EngineConfig config;
    config.model = directory();
    quire::default_sampling_params(config);
  });
  has_tokenizer |= no_tokenizer.empty();
  has_template |= no_template.empty();
  has_defaults |= no_defaults.empty();
  was_wrong_about_vocab |= no_tokenizer.find("/vocab.json: ") != std::string::npos;
  was_wrong_about_defaults |= no_defaults.find("/generation_config.json: ") != std::string::npos;
  return 0;
}

extern "C" const char* fuzz_target_missed() {
  return !has_tokenizer              ? "a tokenizer"
         : !has_template             ? "a chat template"
         : !has_defaults             ? "defaults of requests"
         : !was_wrong_about_vocab    ? "a vocabulary that is refused"
         : !was_wrong_about_defaults ? "defaults that are refused"
                                     : nullptr;
}
