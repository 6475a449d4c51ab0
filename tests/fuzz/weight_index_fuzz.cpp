// A model.safetensors.index.json, beside two files of a tensor each: it is refused by name, or says of no
// tensor what is not so.
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "quire/error.h"
#include "scratch_directory.h"
#include "weights/checkpoint.h"

namespace {

namespace fs = std::filesystem;

bool has_accepted = false, was_no_file_name = false, was_in_another = false;

void write_file_of(const fs::path& path, const std::string& tensor) {
  const std::string header =
      R"({")" + tensor + R"(": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}})";
  const uint64_t bytes = header.size();
  std::string file(sizeof bytes, '\0');
  std::memcpy(file.data(), &bytes, sizeof bytes);
  std::ofstream(path, std::ios::binary) << file << header << std::string(8, '\0');
}

const fs::path& directory() {
  static const quire::ScratchDirectory scratch;
  static const bool has_files = [] {
    write_file_of(scratch.path() / "1.safetensors", "a");
    write_file_of(scratch.path() / "2.safetensors", "b");
    return true;
  }();
  static_cast<void>(has_files);
  return scratch.path();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::ofstream(directory() / "model.safetensors.index.json", std::ios::binary)
      << std::string_view(reinterpret_cast<const char*>(data), size);
  try {
    const quire::Checkpoint checkpoint = quire::Checkpoint::open(directory().string());
    for (const quire::TensorEntry& entry : checkpoint.described_tensors()) {
      if ((entry.name != "a" && entry.name != "b") || entry.shape != std::vector<int64_t>{2})
        __builtin_trap();
    }
    has_accepted = true;
  } catch (const quire::InvalidArgument& refused) {
    const std::string_view why = refused.what();
    was_no_file_name |= why.find("must be a file name") != why.npos;
    was_in_another |= why.find("' is not in ") != why.npos;
  }
  return 0;
}

extern "C" const char* fuzz_target_missed() {
  return !has_accepted       ? "an index that is accepted"
         : !was_no_file_name ? "an index that leads out of the directory"
         : !was_in_another   ? "a tensor that is in another file"
                             : nullptr;
}
