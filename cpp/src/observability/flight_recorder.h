// A ring of recent events, in memory: what happened in the last minutes can be written out after the fact.
//
// The ring has segments. Each begins with a snapshot, so that the oldest can be dropped and what is left
// still stands on its own. Appending copies bytes and, in a segment's given size, allocates nothing.
//
// Thread-safe: one thread records, any may write the contents out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "messages/recording.h"
#include "util/ring_queue.h"

namespace quire {

class FlightRecorder {
 public:
  // Keeps about `bytes` at most (a segment may exceed its part when its snapshot alone nearly does), and
  // nothing older than `seconds` except in the two newest segments. `header` is written before the events.
  FlightRecorder(int64_t bytes, double seconds, std::vector<std::byte> header);

  // Whether the next event should be a snapshot, which begins a segment.
  bool wants_snapshot(double now) const { return full_ || now >= segment_end_; }
  void record_snapshot(double now, const SchedulerSnapshot& snapshot);

  template <typename Message>
  void record(RecordedEventKind kind, const Message& message) {
    const std::lock_guard lock(mutex_);
    append(kind, message);
  }
  void record(RecordedEventKind kind) {
    const std::lock_guard lock(mutex_);
    append(kind, uint8_t{0});
  }

  // Writes header and events to a new file at `path`, by way of a temporary one beside it. Throws
  // InvalidArgument, and leaves nothing behind, when that fails or `path` is there and no regular file.
  void dump(const std::string& path) const;
  size_t num_bytes() const;

 private:
  static constexpr size_t kNumSegments = 4;

  struct Segment {
    double begin = 0.0;
    std::vector<std::byte> bytes;
  };

  // An event: its kind, the length of what follows, and that.
  template <typename Message>
  void append(RecordedEventKind kind, const Message& message) {
    if (segments_.empty()) return;  // nothing can be understood before the first snapshot
    std::vector<std::byte>& bytes = segments_[segments_.size() - 1].bytes;
    bytes.push_back(static_cast<std::byte>(kind));
    const size_t length_at = bytes.size();
    bytes.resize(length_at + sizeof(uint32_t));
    Writer writer(bytes);
    writer(message);
    const auto length = static_cast<uint32_t>(bytes.size() - length_at - sizeof(uint32_t));
    std::memcpy(bytes.data() + length_at, &length, sizeof length);
    full_ = bytes.size() >= full_size_;
  }

  const std::vector<std::byte> header_;
  const size_t max_bytes_, segment_bytes_;
  const double segment_seconds_;
  mutable std::mutex mutex_;
  RingQueue<Segment> segments_;  // the newest last
  // The recording thread's.
  bool full_ = true;
  size_t full_size_ = 0;  // of the newest segment
  double segment_end_ = 0.0;
};

}  // namespace quire
