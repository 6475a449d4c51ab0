#include "observability/flight_recorder.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <utility>

#include "util/check.h"

namespace quire {

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
  const std::string temporary = path + ".tmp";
  std::ofstream file(temporary, std::ios::binary | std::ios::trunc);
  const auto write = [&file](const void* data, size_t size) {
    file.write(static_cast<const char*>(data), static_cast<std::streamsize>(size));
  };
  const auto header_size = static_cast<uint32_t>(header_.size());
  write(kRecordingMagic.data(), kRecordingMagic.size());
  write(&kRecordingVersion, sizeof kRecordingVersion);
  write(&header_size, sizeof header_size);
  write(header_.data(), header_.size());
  write(events.data(), events.size());
  file.close();
  if (!file || std::rename(temporary.c_str(), path.c_str()) != 0) {
    std::remove(temporary.c_str());
    throw InvalidArgument(str("cannot write a recording to ", path));
  }
}

}  // namespace quire
