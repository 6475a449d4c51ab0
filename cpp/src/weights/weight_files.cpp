#include "weights/weight_files.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <vector>

#include "quire/error.h"
#include "util/log.h"
#include "util/str.h"

namespace quire {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> find_packed_files(const std::string& directory) {
  std::vector<std::string> paths;
  std::error_code error;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end; entry.increment(error))
    if (entry->path().extension() == PackedFile::kSuffix) paths.push_back(entry->path().string());
  std::ranges::sort(paths);
  return paths;
}

std::string ranks_text(int32_t rank, int32_t world_size) {
  return world_size == 1 ? "one rank" : str("rank ", rank, " of ", world_size);
}

}  // namespace

std::string packed_file_name(const PackedHeader& header) {
  std::string name =
      str(header.layout, '-', header.dtype, '-', header.rank, "-of-", header.world_size, PackedFile::kSuffix);
  std::ranges::replace_if(name, [](char c) { return c == ' ' || c == '/'; }, '-');
  return name;
}

WeightFiles open_weight_files(const std::string& directory, const WeightReader& reader) {
  if (!reader.takes_packed) return {Checkpoint::open(directory), nullptr};
  std::string others;
  for (const std::string& path : find_packed_files(directory)) {
    auto file = std::make_shared<const PackedFile>(path);
    const PackedHeader& header = file->header();
    if (header.layout == reader.layout && header.rank == reader.rank &&
        header.world_size == reader.world_size && (reader.dtype == "auto" || reader.dtype == header.dtype)) {
      Checkpoint checkpoint = Checkpoint::described(directory, header.main_dtype, header.tensors);
      return {std::move(checkpoint), std::move(file)};
    }
    others += str(others.empty() ? "" : "; ", fs::path(path).filename().string(), " is for ", header.layout,
                  " in ", header.dtype, ", ", ranks_text(header.rank, header.world_size));
  }
  if (!others.empty() && !Checkpoint::is_at(directory)) {
    throw InvalidArgument(str(directory, ": has no weights for ", reader.layout,
                              reader.dtype == "auto" ? std::string() : str(" in ", reader.dtype), ", ",
                              ranks_text(reader.rank, reader.world_size), ": ", others,
                              "; pack the model for these too, or give the directory it was packed from"));
  }
  if (!others.empty())
    log(LogLevel::kInfo, directory, ": no packed weights suit ", reader.layout, "; reading the checkpoint");
  return {Checkpoint::open(directory), nullptr};
}

}  // namespace quire
