// A recording, read and run again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "messages/recording.h"
#include "quire/flight_recorder.h"
#include "scheduler/recording_header.h"

namespace quire {

struct RecordedEvent {
  RecordedEventKind kind{};
  size_t offset = 0;  // in the file
  std::span<const std::byte> bytes;
};

// Refers to the bytes it was parsed from.
struct Recording {
  RecordingHeader header;
  std::vector<RecordedEvent> events;  // the first is a snapshot

  // Throws InvalidArgument, with the offset, for bytes that are not a recording.
  static Recording parse(std::span<const std::byte> bytes);
};

// Throws InvalidArgument when there is no such file.
std::vector<std::byte> read_recording_file(const std::string& path);

// Sees what happens, with the steps as they were scheduled again.
struct ReplayObserver {
  virtual ~ReplayObserver() = default;
  virtual void on_snapshot(const SchedulerSnapshot&) {}
  virtual void on_add(const RecordedRequest&) {}
  virtual void on_abort(RequestId) {}
  virtual void on_schedule(const RecordedSchedule&, const SchedulerOutput&) {}
  virtual void on_result(const RecordedResult&, const SchedulerOutput&, const EngineCoreOutputs&) {}
};

// Throws InvalidArgument, with the offset, for events that no engine can have recorded.
ReplayReport replay(const Recording& recording, ReplayObserver& observer);

}  // namespace quire
