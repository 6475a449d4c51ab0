#include "observability/flight_recorder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <span>
#include <utility>

#include "util/check.h"

namespace quire {
namespace {

[[noreturn]] void fail(const std::string& path, const std::string& why) {
  throw InvalidArgument(str("cannot write a recording to ", path, ": ", why));
}

// Renaming replaces whatever has that name: a device or a link would be lost.
void check_target(const std::string& path) {
  struct stat status{};
  if (lstat(path.c_str(), &status) != 0) {
    if (errno != ENOENT) fail(path, std::strerror(errno));
    return;
  }
  if (S_ISREG(status.st_mode)) return;
  const char* kind = S_ISDIR(status.st_mode)   ? "a directory"
                     : S_ISLNK(status.st_mode) ? "a symbolic link"
                                               : "a device, pipe or socket";
  fail(path, str("it is ", kind, "; give a new name, or a regular file to replace"));
}

// A new file beside `path`, for this call alone. It is gone unless it becomes `path`.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& path) : path_(path) {
    static std::atomic<uint64_t> count{0};
    do {
      name_ = str(path, ".", getpid(), "-", ++count, ".tmp");
      fd_ = open(name_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
    } while (fd_ < 0 && errno == EEXIST);
    if (fd_ < 0) fail(path_, std::strerror(errno));
  }
  ~TemporaryFile() {
    if (fd_ >= 0) close(fd_);
    if (!name_.empty()) unlink(name_.c_str());
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  void write(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t count = ::write(fd_, bytes.data(), bytes.size());
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) fail(path_, std::strerror(errno));
      bytes = bytes.subspan(static_cast<size_t>(count));
    }
  }

  void become_path() {
    // Some file systems say only now that there was no room.
    if (close(std::exchange(fd_, -1)) != 0) fail(path_, std::strerror(errno));
    if (std::rename(name_.c_str(), path_.c_str()) != 0) fail(path_, std::strerror(errno));
    name_.clear();
  }

 private:
  const std::string path_;
  std::string name_;
  int fd_ = -1;
};

}  // namespace

FlightRecorder::FlightRecorder(int64_t bytes, double seconds, std::vector<std::byte> header)
    : header_(std::move(header)),
      max_bytes_(static_cast<size_t>(bytes)),
      segment_bytes_(static_cast<size_t>(bytes) / kNumSegments),
      segment_seconds_(seconds / (kNumSegments - 1)) {}

void FlightRecorder::record_snapshot(double now, const SchedulerSnapshot& snapshot) {
  const std::lock_guard lock(mutex_);
  // The oldest goes when its place is needed, or when even its end is too old.
  const auto total = [this] {
    size_t sum = 0;
    for (size_t i = 0; i < segments_.size(); ++i) sum += segments_[i].bytes.size();
    return sum;
  };
  std::vector<std::byte> used;  // an old segment's buffer, for the new one
  while (!segments_.empty() &&
         (segments_.size() >= kNumSegments || total() + segment_bytes_ > max_bytes_ ||
          (segments_.size() > 1 && segments_[1].begin < now - segment_seconds_ * (kNumSegments - 1)))) {
    used = std::move(segments_.front().bytes);
    segments_.front().bytes = {};
    segments_.pop();
  }
  Segment& segment = segments_.push();
  segment.begin = now;
  segment.bytes = std::move(used);
  segment.bytes.clear();
  append(RecordedEventKind::kSnapshot, snapshot);
  // However large the snapshot, events get half a segment: the next snapshot must not follow at once.
  full_size_ = std::max(segment_bytes_, segment.bytes.size() + segment_bytes_ / 2);
  segment.bytes.reserve(full_size_ + segment_bytes_ / 8);  // untouched pages cost nothing
  full_ = false;
  segment_end_ = now + segment_seconds_;
}

size_t FlightRecorder::num_bytes() const {
  const std::lock_guard lock(mutex_);
  size_t sum = 0;
  for (size_t i = 0; i < segments_.size(); ++i) sum += segments_[i].bytes.size();
  return sum;
}

void FlightRecorder::dump(const std::string& path) const {
  // Whoever records does not wait for the disk.
  std::vector<std::byte> events;
  {
    const std::lock_guard lock(mutex_);
    for (size_t i = 0; i < segments_.size(); ++i)
      events.insert(events.end(), segments_[i].bytes.begin(), segments_[i].bytes.end());
  }
  check_target(path);
  TemporaryFile file(path);
  const auto header_size = static_cast<uint32_t>(header_.size());
  file.write(std::as_bytes(std::span(kRecordingMagic)));
  file.write(std::as_bytes(std::span(&kRecordingVersion, 1)));
  file.write(std::as_bytes(std::span(&header_size, 1)));
  file.write(header_);
  file.write(events);
  file.become_path();
}

}  // namespace quire
