// A GGUF file's bytes, as far as its data: what is accepted lies within the file, every key can be asked for
// as every type, and the keys make a configuration and a tokenizer or say what is wrong.
#include <cstring>
#include <fstream>
#include <string_view>

#include "formats/gguf.h"
#include "formats/gguf_config.h"
#include "quire/error.h"
#include "scratch_directory.h"
#include "tokenizer/gguf_tokenizer.h"

namespace {

// What mutations must have reached, or they no longer test what they should.
bool has_accepted = false, was_wrong_about_a_tensor = false, was_wrong_about_an_array = false;
bool has_config = false, has_tokenizer = false;

template <typename Call>
void ask(const Call& call) {
  try {
    call();
  } catch (const quire::InvalidArgument&) {
  }
}

void check(const quire::GgufHeader& header, uint64_t file_bytes) {
  uint64_t end = 0;
  for (const auto& tensor : header.tensors) {
    if (tensor.position < end || tensor.num_bytes > file_bytes) __builtin_trap();
    end = tensor.position + tensor.num_bytes;
    if (end > file_bytes) __builtin_trap();
  }
  for (const auto& [key, value] : header.metadata) {
    ask([&] { header.get_int(key, 0, 9); });
    ask([&] { header.get_number(key); });
    ask([&] { header.get_bool(key, false); });
    ask([&] { header.get_string(key); });
    ask([&] { header.get_array<int64_t>(key); });
    ask([&] { header.get_array<double>(key); });
    ask([&] { header.get_array<std::string>(key); });
  }
}

void read_model(const quire::GgufHeader& header, std::string_view bytes) {
  ask([&] {
    const auto tokenizer = quire::text::read_gguf_tokenizer(header);
    tokenizer->decode(tokenizer->encode("It's 12 e\u0301 字  \n<s> end ", true), false);
    has_tokenizer = true;
  });
  static const quire::ScratchDirectory scratch;
  const std::string path = (scratch.path() / "fuzz.gguf").string();
  std::ofstream(path, std::ios::binary) << bytes;
  ask([&] {
    quire::read_gguf_config(path);
    has_config = true;
  });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto read_at = [&](uint64_t position, std::span<std::byte> out) {
    if (position > size || out.size() > size - position) __builtin_trap();
    std::memcpy(out.data(), data + position, out.size());
  };
  try {
    const quire::GgufHeader header = quire::parse_gguf(read_at, size, "fuzz");
    check(header, size);
    read_model(header, {reinterpret_cast<const char*>(data), size});
    has_accepted = true;
  } catch (const quire::InvalidArgument& refused) {
    const std::string_view why = refused.what();
    was_wrong_about_a_tensor |= why.find("tensor '") != why.npos;
    was_wrong_about_an_array |= why.find("elements of") != why.npos;
  }
  return 0;
}

extern "C" const char* fuzz_target_missed() {
  return !has_accepted               ? "a file that is accepted"
         : !was_wrong_about_a_tensor ? "a file that is wrong about a tensor"
         : !was_wrong_about_an_array ? "an array that is too long"
         : !has_config               ? "a model's configuration"
         : !has_tokenizer            ? "a model's tokenizer"
                                     : nullptr;
}
