#include "weights/packed_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <limits>
#include <set>

#include "device/buffer.h"
#include "formats/json.h"
#include "quire/error.h"
#include "util/check.h"
#include "util/str.h"

namespace quire {
namespace packed_files {
namespace {

constexpr std::string_view kMagic = "QUIREPAK";
constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // as of a safetensors file
constexpr uint64_t kMaxBytes = uint64_t{1} << 50;  // far from where sums overflow

uint64_t rounded(uint64_t bytes) { return DeviceArena::rounded(bytes); }
uint64_t data_at(uint64_t header_bytes) {
  const uint64_t end = kMagic.size() + sizeof(uint64_t) + header_bytes;
  return (end + MappedFile::kAlignment - 1) / MappedFile::kAlignment * MappedFile::kAlignment;
}

[[noreturn]] void fail(const std::string& path, const std::string& what) {
  throw InvalidArgument(str(path, ": ", what));
}

TensorEntry read_tensor(const JsonNode& node) {
  node.allow_only({"name", "dtype", "shape"});
  TensorEntry entry;
  entry.name = node.at("name").string();
  entry.dtype = node.at("dtype").string();
  for (const JsonNode& size : node.at("shape").elements())
    entry.shape.push_back(size.integer(0, std::numeric_limits<int64_t>::max()));
  return entry;
}

void read_at(int fd, uint64_t position, std::span<std::byte> out, const std::string& path) {
  while (!out.empty()) {
    const ssize_t count = ::pread(fd, out.data(), out.size(), static_cast<off_t>(position));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail(path, str("cannot be read at byte ", position, ": ", std::strerror(errno)));
    if (count == 0) fail(path, "was truncated while it was read");
    position += static_cast<uint64_t>(count);
    out = out.subspan(static_cast<size_t>(count));
  }
}

void check_section(const PackedFile& file, size_t section, size_t bytes) {
  const std::vector<uint64_t>& sections = file.header().sections;
  if (section < sections.size() && sections[section] == bytes) return;
  fail(file.path(),
       str("is packed for another model, or by another version: ",
           section < sections.size() ? str("section ", section, " has ", sections[section], " bytes, and one")
                                     : str("it has ", section, " sections, and one more"),
           " of ", bytes, " bytes is wanted; pack it again"));
}

// Removes a file that did not become whole. One process at a time writes it.
class NewFile {
 public:
  explicit NewFile(const std::string& path) : path_(path), part_(path + ".part") {
    while (!open_part()) ::close(fd_);
    is_mine_ = true;
    if (::ftruncate(fd_, 0) != 0) refuse();
  }
  ~NewFile() { close(); }
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  void write(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t count = ::write(fd_, bytes.data(), bytes.size());
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) refuse();
      bytes = bytes.subspan(static_cast<size_t>(count));
      position_ += static_cast<uint64_t>(count);
    }
  }
  void pad_to(uint64_t position) {
    static constexpr std::array<std::byte, 4096> kZeros{};
    while (position_ < position)
      write(std::span(kZeros).first(std::min<uint64_t>(kZeros.size(), position - position_)));
  }
  uint64_t position() const { return position_; }
  void finish() {
    if (::fsync(fd_) != 0 || ::rename(part_.c_str(), path_.c_str()) != 0) refuse();
    is_mine_ = false;
    close();
  }

 private:
  // False when the one who had it before gave it its name meanwhile: what was opened is now the whole file.
  bool open_part() {
    fd_ = ::open(part_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0644);
    if (fd_ < 0) refuse();
    // File systems without locks do without.
    if (::flock(fd_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
      close();
      throw InvalidArgument(str(path_, ": another process is writing it; wait for that one"));
    }
    struct stat opened{}, named{};
    return ::fstat(fd_, &opened) == 0 && ::lstat(part_.c_str(), &named) == 0 &&
           opened.st_ino == named.st_ino && opened.st_dev == named.st_dev;
  }
  void close() {
    if (is_mine_) ::unlink(part_.c_str());
    if (fd_ >= 0) ::close(fd_);
    is_mine_ = false;
    fd_ = -1;
  }
  [[noreturn]] void refuse() {
    const int why = errno;
    close();
    throw ResourceExhausted(str(path_, ": cannot be written: ", std::strerror(why)));
  }

  std::string path_, part_;
  int fd_ = -1;
  bool is_mine_ = false;
  uint64_t position_ = 0;
};

class PackedArena final : public DeviceArena {
 public:
  explicit PackedArena(std::shared_ptr<const PackedFile> file)
      : file_(std::move(file)), mapping_(file_->map()) {}

  std::byte* allocate(size_t bytes) override {
    check_section(*file_, next_, bytes);
    return handed_out(mapping_.data() + file_->begin_of(next_++), bytes);
  }
  std::byte* allocate_computed(size_t bytes) override {
    return computed(handed_out(computed_.emplace_back(bytes).data(), bytes));
  }
  size_t remaining() const override { return std::numeric_limits<size_t>::max(); }
  void discard() override {
    mapping_.discard();
    for (Buffer& buffer : computed_) buffer.discard();
  }
  void restore() override { file_->map_again(mapping_); }
  void check() const override {
    if (mapping_.is_damaged())
      throw InternalError(str(file_->path(), ": was cut off while it was in use; weights are lost"));
    file_->check_unchanged();
  }

 private:
  std::shared_ptr<const PackedFile> file_;
  MappedFile mapping_;
  std::vector<Buffer> computed_;
  size_t next_ = 0;
};

}  // namespace
}  // namespace packed_files

PackedHeader parse_packed_header(std::string_view text, uint64_t data_bytes, const std::string& path) {
  const Json json = parse_json(text, path);
  const JsonNode root(json, path);
  PackedHeader header;
  if (const int64_t version = root.at("version").integer(0, std::numeric_limits<int64_t>::max());
      version != PackedHeader::kVersion) {
    root.at("version").fail(
        str("is ", version, "; this Quire reads ", PackedHeader::kVersion, ": pack the model again"));
  }
  root.allow_only({"version", "layout", "dtype", "rank", "world_size", "main_dtype", "tensors", "sections"});
  header.layout = root.at("layout").string();
  header.dtype = root.at("dtype").string();
  if (header.dtype != "float32" && header.dtype != "float16" && header.dtype != "bfloat16")
    root.at("dtype").fail("must be float32, float16 or bfloat16");
  header.world_size = static_cast<int32_t>(root.at("world_size").integer(1, 1 << 16));
  header.rank = static_cast<int32_t>(root.at("rank").integer(0, header.world_size - 1));
  header.main_dtype = root.at("main_dtype").string();
  if (header.main_dtype != "F32" && header.main_dtype != "F16" && header.main_dtype != "BF16")
    root.at("main_dtype").fail("must be F32, F16 or BF16");
  std::set<std::string_view> names;
  for (const JsonNode& tensor : root.at("tensors").elements())
    header.tensors.push_back(packed_files::read_tensor(tensor));
  for (const TensorEntry& tensor : header.tensors)
    if (!names.insert(tensor.name).second) root.at("tensors").fail(str("has '", tensor.name, "' twice"));
  uint64_t total = 0;
  for (const JsonNode& section : root.at("sections").elements()) {
    header.sections.push_back(static_cast<uint64_t>(section.integer(0, packed_files::kMaxBytes)));
    total += packed_files::rounded(header.sections.back());
    if (total > packed_files::kMaxBytes) break;
  }
  if (total != data_bytes) {
    packed_files::fail(path, str("the header describes ", total, " bytes of data, the file holds ",
                                 data_bytes, total > data_bytes ? ": it is truncated" : ""));
  }
  return header;
}

PackedFile::PackedFile(const std::string& path) : path_(path) {
  using namespace packed_files;
  fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a FIFO is no file
  if (fd_ < 0) fail(path, std::strerror(errno));
  try {
    struct stat status{};
    if (::fstat(fd_, &status) != 0 || !S_ISREG(status.st_mode)) fail(path, "is not a file");
    identity_ = identity();
    stamp_ = str(path, ' ', identity_.bytes, ' ', identity_.seconds, '.', identity_.nanoseconds, ' ',
                 identity_.device, ' ', identity_.inode, '\n');
    const auto file_bytes = static_cast<uint64_t>(status.st_size);
    struct {
      char magic[8];
      uint64_t header_bytes;
    } start;
    if (file_bytes < sizeof start)
      fail(path, str("has ", file_bytes, " bytes, and is no file of packed weights"));
    read_at(fd_, 0, std::as_writable_bytes(std::span(&start, 1)), path);
    if (std::string_view(start.magic, sizeof start.magic) != kMagic)
      fail(path, "does not begin as a file of packed weights");
    if (start.header_bytes > kMaxHeaderBytes || data_at(start.header_bytes) > file_bytes) {
      fail(path, str("the header claims ", start.header_bytes, " bytes, the file has ", file_bytes,
                     ": it is truncated"));
    }
    std::string text(start.header_bytes, '\0');
    read_at(fd_, sizeof start, std::as_writable_bytes(std::span(text)), path);
    data_at_ = data_at(start.header_bytes);
    data_bytes_ = file_bytes - data_at_;
    header_ = parse_packed_header(text, data_bytes_, path);
    uint64_t begin = 0;
    for (const uint64_t bytes : header_.sections) {
      begins_.push_back(begin);
      begin += rounded(bytes);
    }
  } catch (...) {
    ::close(fd_);
    throw;
  }
}

PackedFile::~PackedFile() { ::close(fd_); }

PackedFile::Identity PackedFile::identity() const {
  struct stat status{};
  if (::fstat(fd_, &status) != 0) packed_files::fail(path_, std::strerror(errno));
  return {status.st_size, status.st_mtim.tv_sec, status.st_mtim.tv_nsec, status.st_dev, status.st_ino};
}

void PackedFile::check_unchanged() const {
  if (identity() != identity_) packed_files::fail(path_, "was written while it was in use; weights are lost");
}

void PackedFile::read(uint64_t begin, std::span<std::byte> out) const {
  QUIRE_CHECK(begin <= data_bytes_ && out.size() <= data_bytes_ - begin);
  packed_files::read_at(fd_, data_at_ + begin, out, path_);
}

MappedFile PackedFile::map() const { return MappedFile(fd_, path_, data_at_, data_bytes_); }

void write_packed_file(const std::string& path, PackedHeader header,
                       std::span<const std::span<const std::byte>> sections) {
  using namespace packed_files;
  Json tensors = Json::array();
  for (const TensorEntry& tensor : header.tensors)
    tensors.push_back({{"name", tensor.name}, {"dtype", tensor.dtype}, {"shape", tensor.shape}});
  Json sizes = Json::array();
  for (const auto& section : sections) sizes.push_back(section.size());
  const std::string text = Json{
      {"version", PackedHeader::kVersion},
      {"layout", header.layout},
      {"dtype", header.dtype},
      {"rank", header.rank},
      {"world_size", header.world_size},
      {"main_dtype", header.main_dtype},
      {"tensors", std::move(tensors)},
      {"sections",
       std::move(sizes)}}.dump();
  const uint64_t header_bytes = text.size();
  NewFile file(path);
  file.write(std::as_bytes(std::span(kMagic)));
  file.write(std::as_bytes(std::span(&header_bytes, 1)));
  file.write(std::as_bytes(std::span(text)));
  file.pad_to(data_at(header_bytes));
  for (const auto& section : sections) {
    file.write(section);
    file.pad_to(data_at(header_bytes) + rounded(file.position() - data_at(header_bytes)));
  }
  file.finish();
}

void check_sections(const PackedFile& file, const DeviceArena& arena) {
  size_t section = 0;
  for (const DeviceArena::Allocation& each : arena.allocations())
    if (!each.is_computed) packed_files::check_section(file, section++, each.bytes);
  if (section == file.header().sections.size()) return;
  packed_files::fail(file.path(), str("is packed for another model, or by another version: it has ",
                                      file.header().sections.size(), " sections, and the model wants ",
                                      section, "; pack it again"));
}

std::unique_ptr<DeviceArena> make_packed_arena(std::shared_ptr<const PackedFile> file) {
  return std::make_unique<packed_files::PackedArena>(std::move(file));
}

}  // namespace quire
