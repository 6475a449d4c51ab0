#include "observability/flight_recorder.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <fstream>
#include <thread>

#include "quire/error.h"
#include "simulator/replay.h"
#include "util/error_of.h"

namespace quire {
namespace {

std::vector<std::byte> header_bytes(int32_t max_loras = 0) {
  RecordingHeader header;
  header.model = "test";
  header.scheduler.max_loras = max_loras;
  std::vector<std::byte> bytes;
  Writer writer(bytes);
  writer(header);
  return bytes;
}

std::vector<std::byte> dumped(const FlightRecorder& recorder) {
  const std::string path =
      testing::TempDir() + "quire_flight_recorder_test-" + std::to_string(getpid()) + ".rec";
  recorder.dump(path);
  auto bytes = read_recording_file(path);
  std::remove(path.c_str());
  return bytes;
}

RequestId aborted_id(const RecordedEvent& event) {
  RecordedAbort abort;
  Reader reader(event.bytes);
  reader(abort);
  return abort.request_id;
}

std::string refusal(std::span<const std::byte> bytes) {
  return error_of([&] { Recording::parse(bytes); });
}

// Seeds of another version would be refused before anything in them is looked at.
TEST(FlightRecorderTest, SeedsOfTheFuzzerReplay) {
  for (const std::string name : {"fcfs", "priority", "fair", "connector", "beams", "loras"}) {
    const ReplayReport report = replay_recording("tests/fuzz/seeds/recording_fuzz/" + name);
    EXPECT_EQ(report.divergence, "") << name;
    EXPECT_GT(report.num_steps, 20U) << name;
    EXPECT_EQ(report.num_preemptions > 0, name != "connector" && name != "beams") << name;
  }
}

TEST(FlightRecorderTest, KeepsTheNewestWithinItsBytesAndBeginsWithASnapshot) {
  FlightRecorder recorder(1 << 14, 1e9, header_bytes());
  for (RequestId id = 1; id <= 10000; ++id) {
    if (recorder.wants_snapshot(1.0)) recorder.record_snapshot(1.0, {});
    recorder.record(RecordedEventKind::kAbort, RecordedAbort{id, 7});
    ASSERT_LE(recorder.num_bytes(), 1U << 14);
  }
  EXPECT_GT(recorder.num_bytes(), 1U << 13);
  const auto bytes = dumped(recorder);
  const Recording recording = Recording::parse(bytes);
  EXPECT_EQ(recording.header.model, "test");
  ASSERT_GT(recording.events.size(), 100U);
  EXPECT_EQ(recording.events.front().kind, RecordedEventKind::kSnapshot);
  EXPECT_EQ(aborted_id(recording.events.back()), 10000U);
  // No event is missing in between.
  RequestId expected = 10000;
  for (auto event = recording.events.rbegin(); event != recording.events.rend(); ++event) {
    if (event->kind != RecordedEventKind::kSnapshot) {
      EXPECT_EQ(aborted_id(*event), expected--);
    }
  }
  EXPECT_GT(expected, 5000U);  // the oldest are gone
}

TEST(FlightRecorderTest, WhatIsTooOldGoesEvenWhenThereIsRoom) {
  FlightRecorder recorder(1 << 20, 30.0, header_bytes());
  for (RequestId second = 1; second <= 200; ++second) {
    const auto now = static_cast<double>(second);
    if (recorder.wants_snapshot(now)) recorder.record_snapshot(now, {});
    recorder.record(RecordedEventKind::kAbort, RecordedAbort{second, 7});
  }
  const auto bytes = dumped(recorder);
  const Recording recording = Recording::parse(bytes);
  const RequestId oldest = aborted_id(recording.events.at(1));
  EXPECT_GE(oldest, 150U);
  EXPECT_LE(oldest, 171U);  // thirty seconds are there
}

TEST(FlightRecorderTest, NothingIsKeptBeforeTheFirstSnapshot) {
  FlightRecorder recorder(1 << 14, 1e9, header_bytes());
  recorder.record(RecordedEventKind::kAbort, RecordedAbort{1, 7});
  EXPECT_EQ(recorder.num_bytes(), 0U);
  EXPECT_NE(refusal(dumped(recorder)).find("does not begin with a snapshot"), std::string::npos);
}

TEST(FlightRecorderTest, OneRecordsWhileOthersLook) {
  FlightRecorder recorder(1 << 16, 60.0, header_bytes());
  std::atomic<bool> done{false};
  std::thread recording([&] {
    for (int i = 0; i < 3000; ++i) {
      if (recorder.wants_snapshot(i)) recorder.record_snapshot(i, SchedulerSnapshot());
      recorder.record(RecordedEventKind::kAbort, RecordedAbort{static_cast<RequestId>(i), {}});
      recorder.record(RecordedEventKind::kResetPrefixCache);
    }
    done = true;
  });
  const std::string path =
      testing::TempDir() + "quire_flight_recorder_looked_at-" + std::to_string(getpid()) + ".rec";
  size_t most = 0;
  while (!done) {
    most = std::max(most, recorder.num_bytes());
    recorder.dump(path);
  }
  recording.join();
  EXPECT_LE(most, size_t{1} << 16);
  std::remove(path.c_str());
}

TEST(FlightRecorderTest, AFileThatCannotBeWrittenIsSaid) {
  const FlightRecorder recorder(1 << 14, 1e9, header_bytes());
  EXPECT_THROW(recorder.dump("/nowhere/at/all.rec"), InvalidArgument);
}

TEST(RecordingTest, SlotsOfAdaptersThatItsSnapshotHasNotAreRefused) {
  for (const int32_t max_loras : {-1, 1, 1 << 30}) {
    FlightRecorder recorder(1 << 14, 1e9, header_bytes(max_loras));
    recorder.record_snapshot(1.0, {});
    const auto bytes = dumped(recorder);
    ReplayObserver nobody;
    const std::string error = error_of([&] { replay(Recording::parse(bytes), nobody); });
    EXPECT_NE(error.find("another number of adapters"), std::string::npos) << error;
  }
}

TEST(RecordingTest, TornForeignAndDamagedFilesAreRefusedWithTheirOffset) {
  FlightRecorder recorder(1 << 14, 1e9, header_bytes());
  recorder.record_snapshot(1.0, {});
  recorder.record(RecordedEventKind::kAbort, RecordedAbort{1, 7});
  const auto whole = dumped(recorder);
  EXPECT_EQ(refusal(whole), "");
  const size_t last = whole.size() - 5 - 17;  // an event is its kind, its length, and here 17 bytes
  auto bytes = whole;
  bytes.pop_back();
  EXPECT_NE(refusal(bytes).find(str("at offset ", last + 5, ": torn")), std::string::npos) << refusal(bytes);
  bytes = whole;
  bytes[last] = std::byte{99};
  EXPECT_NE(refusal(bytes).find(str("at offset ", last, ": no event is of kind 99")), std::string::npos);
  bytes = whole;
  bytes[0] = std::byte{'X'};
  EXPECT_NE(refusal(bytes).find("not a recording"), std::string::npos);
  bytes = whole;
  bytes[8] = std::byte{77};
  EXPECT_NE(refusal(bytes).find("at offset 8: version"), std::string::npos) << refusal(bytes);
  // However much of it is there, it is refused and never read past.
  for (size_t size = 0; size < whole.size(); ++size) {
    const std::vector<std::byte> part(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size));
    if (size == last) continue;  // the event before it is whole
    EXPECT_NE(refusal(part), "") << size;
  }
  EXPECT_THROW(read_recording_file("/nowhere.rec"), InvalidArgument);
}

}  // namespace
}  // namespace quire
