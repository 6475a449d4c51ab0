#include "engine/scheduler_recorder.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>

#include "util/check.h"
#include "util/log.h"

namespace quire {
namespace {

std::vector<std::byte> bytes_of(const RecordingHeader& header) {
  std::vector<std::byte> bytes;
  Writer writer(bytes);
  writer(header);
  return bytes;
}

}  // namespace

std::optional<KVConnectorMatch> RecordedKVConnector::get_num_new_matched_tokens(
    const KVConnectorRequest& request, int32_t num_computed_tokens) {
  const auto match = connector_->get_num_new_matched_tokens(request, num_computed_tokens);
  answers_.push_back(match ? 2 * int64_t{match->num_tokens} + (match->load_async ? 1 : 0) : -1);
  return match;
}

void RecordedKVConnector::update_state_after_alloc(const KVConnectorRequest& request,
                                                   KVConnectorBlocks blocks, int32_t num_external_tokens) {
  connector_->update_state_after_alloc(request, blocks, num_external_tokens);
}

std::string RecordedKVConnector::build_connector_meta(uint64_t step_id,
                                                      std::span<const KVConnectorScheduled> scheduled) {
  std::string metadata = connector_->build_connector_meta(step_id, scheduled);
  answers_.push_back(metadata.empty() ? 0 : 1);
  return metadata;
}

bool RecordedKVConnector::request_finished(const KVConnectorRequest& request, KVConnectorBlocks blocks) {
  const bool holds = connector_->request_finished(request, blocks);
  answers_.push_back(holds ? 1 : 0);
  return holds;
}

SchedulerRecorder::SchedulerRecorder(const EngineConfig& config, const RecordingHeader& header,
                                     Scheduler& scheduler, InFlightOutput in_flight_output,
                                     std::shared_ptr<RecordedKVConnector> connector)
    : scheduler_(scheduler),
      in_flight_output_(std::move(in_flight_output)),
      connector_(std::move(connector)),
      directory_(config.flight_recorder_dir),
      recorder_(config.flight_recorder_bytes, config.flight_recorder_minutes * 60.0, bytes_of(header)) {
  scheduler_.record_new_hashes(true);
  if (KVArena::Member* memory = scheduler_.kv_cache_manager().shared_memory())
    memory->record_answers(&schedule_.arena_answers);
  if (config.flight_recorder_signal > 0) {
    signal_dump_ =
        std::make_unique<SignalDump>(config.flight_recorder_signal, [this] { dump_after("signal"); });
  }
}

void SchedulerRecorder::added(RequestId id) {
  recorder_.record(RecordedEventKind::kAdd, scheduler_.find_request(id)->record());
}

void SchedulerRecorder::aborted(RequestId id, RequestStatus status) {
  RecordedAbort abort{id, static_cast<uint8_t>(status)};
  take_answers(abort.connector_answers);
  recorder_.record(RecordedEventKind::kAbort, abort);
}

void SchedulerRecorder::grammar_ready(RequestId id) {
  recorder_.record(RecordedEventKind::kGrammarReady, id);
}

void SchedulerRecorder::paused(PauseState state) {
  recorder_.record(RecordedEventKind::kPause, static_cast<uint8_t>(state));
}

void SchedulerRecorder::reset_prefix_cache() { recorder_.record(RecordedEventKind::kResetPrefixCache); }

void SchedulerRecorder::scheduled(double now, const SchedulerOutput& scheduler_output, bool launched) {
  // A look that changed nothing need not be repeated.
  const uint64_t num_failed = scheduler_.kv_cache_manager().num_failed_allocations();
  take_answers(schedule_.connector_answers);
  // A look at nothing gets one answer: that the workers need know nothing.
  const KVConnectorAnswers& answers = schedule_.connector_answers;
  const bool was_answered =
      !schedule_.arena_answers.empty() || answers.size() > 1 || (answers.size() == 1 && answers[0] != 0);
  const bool changed_nothing = !launched && scheduler_output.preempted_req_ids.empty() && !was_answered &&
                               num_failed == num_failed_allocations_;
  num_failed_allocations_ = num_failed;
  if (changed_nothing) return;
  const SchedulerStats stats = scheduler_.stats();
  RecordedSchedule& recorded = schedule_;
  recorded.now = now;
  recorded.step_id = scheduler_output.step_id;
  recorded.hash = launched ? hash_scheduler_output(scheduler_output) : 0;
  recorded.num_reqs = static_cast<int32_t>(scheduler_output.scheduled_reqs.size());
  recorded.num_tokens = scheduler_output.total_num_scheduled_tokens;
  recorded.num_running_reqs = stats.num_running_reqs;
  recorded.num_waiting_reqs = stats.num_waiting_reqs;
  recorded.num_free_blocks = stats.num_free_blocks;
  recorder_.record(RecordedEventKind::kSchedule, recorded);
  recorded.arena_answers.clear();
}

// The drafts that the scheduler keeps of a result, as far as its grammar decides; and those whose places are
// taken.
int32_t SchedulerRecorder::num_drafts_kept(const RequestResult& result) const {
  const Request* request = scheduler_.find_request(result.request_id);
  if (request == nullptr || request->grammar() == nullptr) return result.num_drafts;
  if (result.num_drafts == 0 && !scheduler_.jumps_forward()) return 0;
  const auto num_kept = static_cast<int32_t>(request->spec_token_ids().size());
  return num_kept > 0 ? request->num_output_placeholders() + num_kept : 0;
}

void SchedulerRecorder::collected(double now, const SchedulerOutput& scheduler_output,
                                  const ModelRunnerOutput& result, const EngineCoreOutputs& outputs,
                                  size_t first_output) {
  result_.now = now;
  result_.step_id = scheduler_output.step_id;
  result_.failed = !result.error.empty();
  result_.num_tokens.clear();
  result_.num_drafts.clear();
  result_.stops.clear();
  result_.errors.clear();
  result_.finished_sending = result.finished_sending;
  result_.finished_recving = result.finished_recving;
  result_.invalid_block_ids = result.invalid_block_ids;
  take_answers(result_.connector_answers);
  scheduler_.take_new_hashes(result_.new_hashes);
  bool plain = true;
  for (size_t i = 0; i < result.results.size(); ++i)
    plain &= result.results[i].num_tokens == scheduler_output.scheduled_reqs[i].samples;
  if (!plain) {
    for (const RequestResult& r : result.results) result_.num_tokens.push_back(r.num_tokens);
  }
  if (!result.draft_token_ids.empty() || scheduler_.jumps_forward()) {
    for (const RequestResult& r : result.results) result_.num_drafts.push_back(num_drafts_kept(r));
  }
  const auto& scheduled = scheduler_output.scheduled_reqs;
  // Outputs come in the order of the SchedulerOutput, without the requests that had nothing to say; some that
  // failed come before the others.
  auto next = scheduled.begin();
  for (size_t i = first_output; i < outputs.outputs.size() && !result_.failed; ++i) {
    const EngineCoreOutput& output = outputs.outputs[i];
    const bool stopped = output.finish_reason == FinishReason::kStop;
    if (!stopped && output.finish_reason != FinishReason::kError) continue;
    const auto found = std::ranges::find(stopped ? next : scheduled.begin(), scheduled.end(),
                                         output.request_id, &ScheduledRequest::request_id);
    const auto index = static_cast<int32_t>(found - scheduled.begin());
    if (stopped) next = found;
    if (found == scheduled.end()) continue;
    if (stopped) {
      result_.stops.emplace_back(index, output.num_tokens - 1);
    } else {
      result_.errors.push_back(index);
    }
  }
  recorder_.record(RecordedEventKind::kResult, result_);
}

void SchedulerRecorder::begin_step(double now) {
  if (!recorder_.wants_snapshot(now)) return;
  SchedulerSnapshot snapshot;
  scheduler_.save(snapshot, in_flight_output_);
  recorder_.record_snapshot(now, snapshot);
}

void SchedulerRecorder::dump_after(const std::string& why) const {
  if (directory_.empty()) return;
  static std::atomic<int> count{0};
  const std::string path = str(directory_, "/quire-", getpid(), "-", ++count, ".rec");
  try {
    recorder_.dump(path);
    log(LogLevel::kInfo, "flight recorder written to ", path, " (", why, ")");
  } catch (const std::exception& error) {
    log(LogLevel::kError, error.what());
  }
}

}  // namespace quire
