#include "simulator/replay.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <new>
#include <unordered_map>

#include "scheduler/scheduler.h"
#include "util/check.h"

namespace quire {
namespace {

constexpr int32_t kMaxTokensOfAResult = 1 << 16;
// 67 million tokens in blocks of 16: a damaged count must not take all memory.
constexpr int32_t kMaxBlocks = 1 << 22;
constexpr int32_t kMaxBlockSize = 1 << 16;
constexpr int32_t kMaxModelLen = 1 << 24;

[[noreturn]] void damaged(size_t offset, const std::string& what) {
  throw InvalidArgument(str("recording: at offset ", offset, ": ", what));
}

template <typename Message>
Message read(const RecordedEvent& event) {
  Message message{};
  try {
    Reader reader(event.bytes);
    reader(message);
    if (!reader.at_end()) damaged(event.offset, "bytes left over");
  } catch (const InvalidArgument& error) {
    damaged(event.offset, error.what());
  }
  return message;
}

// Everything known of a request's block hashes, from the whole recording: those that its tokens will fill
// too.
using Hashes = std::unordered_map<RequestId, std::vector<BlockHash>>;

Hashes collect_hashes(const Recording& recording) {
  Hashes hashes;
  const auto start = [&](const RecordedRequest& request) {
    auto& list = hashes[request.request_id];
    list.clear();
    for (const KVBlockHash& hash : request.block_hashes) list.push_back({hash[0], hash[1]});
  };
  for (const RecordedEvent& event : recording.events) {
    if (event.kind == RecordedEventKind::kSnapshot && &event == &recording.events.front()) {
      for (const RequestSnapshot& request : read<SchedulerSnapshot>(event).requests) start(request.request);
    } else if (event.kind == RecordedEventKind::kAdd) {
      start(read<RecordedRequest>(event));
    } else if (event.kind == RecordedEventKind::kResult) {
      for (const auto& [id, hash] : read<RecordedResult>(event).new_hashes)
        hashes[id].push_back({hash[0], hash[1]});
    }
  }
  return hashes;
}

// Gives the recorded answers again.
class ReplayedKVConnector final : public KVConnectorScheduler {
 public:
  std::optional<KVConnectorMatch> get_num_new_matched_tokens(const KVConnectorRequest&, int32_t) override {
    const int64_t answer = next();
    if (answer < 0) return std::nullopt;
    if (answer / 2 > kMaxModelLen) throw InvalidArgument("a KV connector that has more than any sequence");
    return KVConnectorMatch{static_cast<int32_t>(answer / 2), answer % 2 != 0};
  }
  void update_state_after_alloc(const KVConnectorRequest&, KVConnectorBlocks, int32_t) override {}
  std::string build_connector_meta(uint64_t, std::span<const KVConnectorScheduled>) override {
    return next() != 0 ? "recorded" : "";
  }
  bool request_finished(const KVConnectorRequest&, KVConnectorBlocks) override { return next() != 0; }

  void add(const KVConnectorAnswers& answers) {
    answers_.insert(answers_.end(), answers.begin(), answers.end());
  }

 private:
  int64_t next() {
    if (answers_.empty()) throw InvalidArgument("the KV connector is asked what it was not asked before");
    const int64_t answer = answers_.front();
    answers_.pop_front();
    return answer;
  }

  std::deque<int64_t> answers_;
};

class Replay {
 public:
  Replay(const Recording& recording, ReplayObserver& observer)
      : recording_(recording), observer_(observer), hashes_(collect_hashes(recording)) {}

  ReplayReport run() {
    report_.model = recording_.header.model;
    for (const RecordedEvent& event : recording_.events) {
      try {
        apply(event);
      } catch (const std::bad_alloc&) {
        damaged(event.offset, "more than there is memory for");
      } catch (const InternalError& error) {
        damaged(event.offset, error.what());  // a promise that a damaged recording made us break
      } catch (const InvalidArgument& error) {
        if (std::strncmp(error.what(), "recording:", 10) == 0) throw;
        damaged(event.offset, error.what());
      }
      if (!report_.divergence.empty()) break;
    }
    report_.seconds = std::max(last_time_ - first_time_, 0.0);
    if (scheduler_) report_.num_preemptions = scheduler_->stats().num_preemptions - preemptions_before_;
    return report_;
  }

 private:
  void apply(const RecordedEvent& event) {
    switch (event.kind) {
      case RecordedEventKind::kSnapshot:
        if (!scheduler_) begin(event);
        return;  // later ones are for recordings whose beginning has been dropped
      case RecordedEventKind::kAdd: {
        const auto request = read<RecordedRequest>(event);
        scheduler_->add_recorded_request(request, hashes_[request.request_id]);
        ++report_.num_requests;
        observer_.on_add(request);
        return;
      }
      case RecordedEventKind::kAbort: {
        const auto abort = read<RecordedAbort>(event);
        if (!is_finished(static_cast<RequestStatus>(abort.status)) ||
            abort.status > static_cast<uint8_t>(RequestStatus::kFinishedError)) {
          damaged(event.offset, "an abort with an unfinished status");
        }
        if (connector_) connector_->add(abort.connector_answers);
        scheduler_->finish_request(abort.request_id, static_cast<RequestStatus>(abort.status));
        observer_.on_abort(abort.request_id);
        return;
      }
      case RecordedEventKind::kPause: {
        const auto state = read<uint8_t>(event);
        if (state > static_cast<uint8_t>(PauseState::kPausedAll))
          damaged(event.offset, "an unknown pause state");
        scheduler_->set_pause_state(static_cast<PauseState>(state));
        return;
      }
      // With requests that run it was for new weights, which preempts them.
      case RecordedEventKind::kResetPrefixCache:
        scheduler_->preempt_all();
        scheduler_->reset_prefix_cache();
        return;
      case RecordedEventKind::kGrammarReady: scheduler_->replay_grammar_ready(read<RequestId>(event)); return;
      case RecordedEventKind::kSchedule: schedule(read<RecordedSchedule>(event)); return;
      case RecordedEventKind::kResult: collect(event); return;
    }
  }

  void begin(const RecordedEvent& event) {
    const auto snapshot = read<SchedulerSnapshot>(event);
    const RecordingHeader& header = recording_.header;
    // Sizes are believed only when the snapshot bears them out.
    if (snapshot.pools.size() != header.kv_cache.groups.size())
      damaged(event.offset, "another number of KV groups");
    const SchedulerConfig& config = header.scheduler;
    const auto within = [](int32_t value, int32_t least) { return value >= least && value <= kMaxModelLen; };
    if (!within(config.max_num_seqs, 1) || !within(config.max_num_batched_tokens, 1) ||
        !within(config.max_in_flight_steps, 1) || !within(config.long_prefill_token_threshold, 0) ||
        !within(config.max_num_partial_prefills, 0) || !within(config.max_long_partial_prefills, 0) ||
        !within(config.num_lookahead_tokens, 0) || !within(config.num_padding_drafts, 0) ||
        config.max_awaited_lora_loads < 0 || !within(config.max_num_encoder_input_tokens, 0) ||
        !within(config.encoder_cache_size, 0) || !(config.watermark >= 0 && config.watermark < 1)) {
      damaged(event.offset, "a configuration that no engine has");
    }
    if (config.max_loras < 0 || snapshot.loras.ids.size() != static_cast<size_t>(config.max_loras))
      damaged(event.offset, "another number of adapters");
    if (header.scheduler.max_model_len < 1 || header.scheduler.max_model_len > kMaxModelLen)
      damaged(event.offset, "a model of another size");
    int64_t num_blocks = 0;
    for (size_t g = 0; g < snapshot.pools.size(); ++g) {
      const KVCacheGroup& group = header.kv_cache.groups[g];
      num_blocks += group.num_blocks;
      if (group.num_blocks < 2 || num_blocks > kMaxBlocks || group.spec.block_size > kMaxBlockSize ||
          snapshot.pools[g].num_blocks != group.num_blocks || group.blocks_per_extent < 1 ||
          group.layers.empty()) {
        damaged(event.offset, "a KV group of another size");
      }
    }
    SchedulerParts parts;
    // What other engines left for this one is in the recording; the arena itself is never what is short.
    if (header.shares_arena) parts.kv_arena = std::make_shared<KVArena>(KVArena::kMaxBytes);
    if (header.has_kv_connector) {
      connector_ = std::make_shared<ReplayedKVConnector>();
      parts.kv_connector = connector_;
    }
    scheduler_ = std::make_unique<Scheduler>(header.scheduler, header.kv_cache, std::move(parts));
    scheduler_->restore(snapshot, [this](RequestId id) { return hashes_[id]; });
    for (const InFlightSnapshot& step : snapshot.in_flight) {
      SchedulerOutput& scheduler_output = in_flight_.push();
      scheduler_output = {};
      scheduler_output.step_id = step.step_id;
      scheduler_output.scheduled_reqs = step.scheduled_reqs;
    }
    report_.num_requests = scheduler_->num_unfinished_requests();
    preemptions_before_ = scheduler_->stats().num_preemptions;
    first_time_ = last_time_ = snapshot.now;
    observer_.on_snapshot(snapshot);
  }

  void schedule(const RecordedSchedule& recorded) {
    last_time_ = recorded.now;
    if (connector_) connector_->add(recorded.connector_answers);
    EngineCoreOutputs expired;
    scheduler_->advance(recorded.now, expired);
    SchedulerOutput made;
    if (KVArena::Member* memory = scheduler_->kv_cache_manager().shared_memory())
      memory->replay_answers(recorded.arena_answers);
    const bool scheduled = scheduler_->schedule(made);
    ++report_.num_steps;
    const uint64_t hash = scheduled ? hash_scheduler_output(made) : 0;
    if (hash != recorded.hash) {
      report_.divergence =
          str("step ", recorded.step_id, ": recorded ", recorded.num_reqs, " requests with ",
              recorded.num_tokens, " tokens, ", recorded.num_free_blocks, " blocks free; replayed ",
              made.scheduled_reqs.size(), " requests with ", made.total_num_scheduled_tokens, " tokens, ",
              scheduler_->kv_cache_manager().num_free_blocks(), " blocks free");
      return;
    }
    ++report_.num_identical;
    report_.num_tokens += static_cast<uint64_t>(made.total_num_scheduled_tokens);
    observer_.on_schedule(recorded, made);
    if (scheduled) in_flight_.push() = std::move(made);
  }

  void collect(const RecordedEvent& event) {
    const auto recorded = read<RecordedResult>(event);
    last_time_ = recorded.now;
    if (in_flight_.empty() || in_flight_.front().step_id != recorded.step_id)
      damaged(event.offset, "a result without a step");
    const SchedulerOutput& scheduler_output = in_flight_.front();
    const size_t num_reqs = scheduler_output.scheduled_reqs.size();
    const auto fits = [num_reqs](const std::vector<int32_t>& list) {
      return list.empty() || list.size() == num_reqs;
    };
    if (!fits(recorded.num_tokens) || !fits(recorded.num_drafts))
      damaged(event.offset, "a result of another step");
    ModelRunnerOutput result;
    result.reset(scheduler_output.step_id);
    if (recorded.failed) result.error = "recorded";
    result.finished_sending = recorded.finished_sending;
    result.finished_recving = recorded.finished_recving;
    result.invalid_block_ids = recorded.invalid_block_ids;
    if (connector_) connector_->add(recorded.connector_answers);
    std::vector<int32_t> tokens;
    std::vector<int32_t> drafts;
    for (size_t i = 0; i < num_reqs && !recorded.failed; ++i) {
      const int32_t num_tokens =
          recorded.num_tokens.empty() ? scheduler_output.scheduled_reqs[i].samples : recorded.num_tokens[i];
      const int32_t num_drafts = recorded.num_drafts.empty() ? 0 : recorded.num_drafts[i];
      if (num_tokens < 0 || num_tokens > kMaxTokensOfAResult || num_drafts < 0 ||
          num_drafts > kMaxTokensOfAResult)
        damaged(event.offset, "a result of impossible length");
      tokens.assign(static_cast<size_t>(num_tokens), 0);
      drafts.assign(static_cast<size_t>(num_drafts), 0);
      for (const auto& [index, position] : recorded.stops) {
        if (index != static_cast<int32_t>(i)) continue;
        if (position < 0 || position >= num_tokens) damaged(event.offset, "a stop outside its result");
        tokens[static_cast<size_t>(position)] = kRecordedStop;
      }
      if (std::find(recorded.errors.begin(), recorded.errors.end(), static_cast<int32_t>(i)) !=
          recorded.errors.end())
        result.errors.push_back({static_cast<uint32_t>(i), "recorded"});
      result.add(scheduler_output.scheduled_reqs[i].request_id, tokens, drafts);
    }
    EngineCoreOutputs outputs;
    scheduler_->update_from_output(scheduler_output, result, outputs);
    observer_.on_result(recorded, scheduler_output, outputs);
    in_flight_.pop();
  }

  const Recording& recording_;
  ReplayObserver& observer_;
  Hashes hashes_;
  std::shared_ptr<ReplayedKVConnector> connector_;  // null: none
  std::unique_ptr<Scheduler> scheduler_;
  RingQueue<SchedulerOutput> in_flight_;
  ReplayReport report_;
  double first_time_ = 0.0, last_time_ = 0.0;
  uint64_t preemptions_before_ = 0;
};

}  // namespace

std::vector<std::byte> read_recording_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::error_code error;
  if (!file || std::filesystem::is_directory(path, error))
    throw InvalidArgument(str("cannot read the recording ", path));
  const std::vector<char> text{std::istreambuf_iterator<char>(file), {}};
  std::vector<std::byte> bytes(text.size());
  if (!text.empty()) std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}

Recording Recording::parse(std::span<const std::byte> bytes) {
  Recording recording;
  size_t at = 0;
  const auto take = [&](size_t size) {
    if (size > bytes.size() - at) damaged(at, str("torn: ", size, " bytes are missing"));
    at += size;
    return bytes.subspan(at - size, size);
  };
  const auto take_u32 = [&] {
    uint32_t value = 0;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  };
  if (bytes.size() < kRecordingMagic.size() ||
      std::memcmp(take(kRecordingMagic.size()).data(), kRecordingMagic.data(), kRecordingMagic.size()) != 0) {
    damaged(0, "not a recording of Quire's flight recorder");
  }
  if (const uint32_t version = take_u32(); version != kRecordingVersion)
    damaged(kRecordingMagic.size(), str("version ", version, ", this build reads ", kRecordingVersion));
  const uint32_t header_size = take_u32();
  recording.header = read<RecordingHeader>({RecordedEventKind::kSnapshot, at, take(header_size)});
  while (at < bytes.size()) {
    const size_t offset = at;
    const auto kind = static_cast<uint8_t>(take(1)[0]);
    if (kind < static_cast<uint8_t>(RecordedEventKind::kAdd) ||
        kind > static_cast<uint8_t>(RecordedEventKind::kGrammarReady)) {
      damaged(offset, str("no event is of kind ", int{kind}));
    }
    const uint32_t length = take_u32();
    recording.events.push_back({static_cast<RecordedEventKind>(kind), offset, take(length)});
  }
  if (recording.events.empty() || recording.events[0].kind != RecordedEventKind::kSnapshot)
    damaged(at, "it does not begin with a snapshot");
  return recording;
}

ReplayReport replay(const Recording& recording, ReplayObserver& observer) {
  return Replay(recording, observer).run();
}

ReplayReport replay_recording(const std::string& path) {
  const std::vector<std::byte> bytes = read_recording_file(path);
  ReplayObserver nobody;
  return replay(Recording::parse(bytes), nobody);
}

}  // namespace quire
