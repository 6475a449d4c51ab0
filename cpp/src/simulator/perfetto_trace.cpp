// A recording as a timeline: the trace-event format that Perfetto and chrome://tracing read.
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <unordered_map>

#include "simulator/replay.h"
#include "util/check.h"

namespace quire {
namespace {

// Times are in microseconds since the recording began. Requests are asynchronous slices: a row each.
class TraceWriter final : public ReplayObserver {
 public:
  explicit TraceWriter(std::ostream& out, const std::string& model) : out_(out) {
    out_ << "{\"traceEvents\":[\n"
            R"({"ph":"M","pid":1,"name":"process_name","args":{"name":")"
         << escaped(model) << "\"}},\n"
         << R"({"ph":"M","pid":1,"tid":1,"name":"thread_name","args":{"name":"steps"}})";
  }
  void end() {
    for (const auto& [id, phase] : phases_) emit('e', phase, id, now_);
    out_ << "\n]}\n";
  }

  void on_snapshot(const SchedulerSnapshot& snapshot) override {
    zero_ = now_ = snapshot.now;
    for (const RequestSnapshot& request : snapshot.requests) {
      // Waiting or preempted, running, finished: RequestStatus in this order.
      if (request.status <= 2 || request.status == 4) begin(request.request.request_id, "queued", now_);
      if (request.status == 3) {
        const bool prefill = request.num_computed_tokens < request.num_prefill_tokens;
        begin(request.request.request_id, prefill ? "prefill" : "decode", now_);
      }
    }
  }
  void on_add(const RecordedRequest& request) override {
    begin(request.request_id, "queued", std::max(request.arrival_time, zero_));
  }
  void on_abort(RequestId id) override { finish(id, "abort", now_); }
  void on_schedule(const RecordedSchedule& recorded, const SchedulerOutput& scheduler_output) override {
    now_ = recorded.now;
    for (RequestId id : scheduler_output.preempted_req_ids) begin(id, "preempted", now_);
    for (const ScheduledRequest& s : scheduler_output.scheduled_reqs) {
      const auto phase = phases_.find(s.request_id);
      if (phase == phases_.end() || phase->second == "queued" || phase->second == "preempted")
        begin(s.request_id, "prefill", now_);
    }
    counter("requests",
            str("\"running\":", recorded.num_running_reqs, ",\"waiting\":", recorded.num_waiting_reqs));
    counter("free KV blocks", str("\"blocks\":", recorded.num_free_blocks));
    starts_[scheduler_output.step_id] = now_;
  }
  void on_result(const RecordedResult& recorded, const SchedulerOutput& scheduler_output,
                 const EngineCoreOutputs& outputs) override {
    // A step that was scheduled while another ran began when that one ended.
    const auto start = starts_.find(scheduler_output.step_id);
    const double begun = std::max(start == starts_.end() ? zero_ : start->second, last_end_);
    if (start != starts_.end()) starts_.erase(start);
    now_ = last_end_ = std::max(recorded.now, begun);
    int32_t num_prefill = 0;
    for (const ScheduledRequest& s : scheduler_output.scheduled_reqs) {
      num_prefill += s.num_tokens > 1 + s.num_spec_tokens ? s.num_tokens : 0;
      const auto phase = phases_.find(s.request_id);
      if (s.samples && phase != phases_.end() && phase->second == "prefill")
        begin(s.request_id, "decode", now_);
    }
    separate();
    out_ << str(R"({"ph":"X","pid":1,"tid":1,"name":"step )", scheduler_output.step_id, R"(","ts":)",
                us(begun), R"(,"dur":)", us(now_ - begun + zero_), R"(,"args":{"requests":)",
                scheduler_output.scheduled_reqs.size(), R"(,"tokens":)",
                scheduler_output.total_num_scheduled_tokens, R"(,"prompt tokens":)", num_prefill,
                recorded.failed ? R"(,"failed":true)" : "", "}}");
    for (const EngineCoreOutput& output : outputs.outputs) {
      if (output.finish_reason != FinishReason::kNone)
        finish(output.request_id, finish_reason_name(output.finish_reason), now_);
    }
  }

 private:
  static std::string escaped(const std::string& text) {
    std::string result;
    for (char c : text) {
      if (c == '"' || c == '\\') result += '\\';
      if (static_cast<unsigned char>(c) >= 0x20) result += c;
    }
    return result;
  }
  std::string us(double seconds) const {
    char text[32];
    std::snprintf(text, sizeof text, "%.3f", (seconds - zero_) * 1e6);
    return text;
  }
  void separate() { out_ << ",\n"; }
  void emit(char kind, const std::string& name, RequestId id, double time) {
    separate();
    out_ << str(R"({"ph":")", kind, R"(","cat":"request","pid":1,"tid":2,"id":)", id, R"(,"name":")", name,
                R"(","ts":)", us(time), "}");
  }
  void begin(RequestId id, const std::string& phase, double time) {
    const auto found = phases_.find(id);
    if (found != phases_.end()) emit('e', found->second, id, time);
    phases_[id] = phase;
    emit('b', phase, id, time);
  }
  void finish(RequestId id, const std::string& reason, double time) {
    const auto found = phases_.find(id);
    if (found == phases_.end()) return;
    emit('e', found->second, id, time);
    phases_.erase(found);
    emit('n', "finished: " + reason, id, time);
  }
  void counter(const std::string& name, const std::string& values) {
    separate();
    out_ << str(R"({"ph":"C","pid":1,"name":")", name, R"(","ts":)", us(now_), R"(,"args":{)", values, "}}");
  }

  std::ostream& out_;
  double zero_ = 0.0, now_ = 0.0, last_end_ = 0.0;
  std::unordered_map<RequestId, std::string> phases_;  // of unfinished requests
  std::unordered_map<StepId, double> starts_;          // of steps in flight
};

}  // namespace

ReplayReport write_perfetto_trace(const std::string& recording_path, const std::string& trace_path) {
  const std::vector<std::byte> bytes = read_recording_file(recording_path);
  const Recording recording = Recording::parse(bytes);
  std::ofstream out(trace_path, std::ios::trunc);
  if (!out) throw InvalidArgument(str("cannot write a trace to ", trace_path));
  TraceWriter writer(out, recording.header.model);
  ReplayReport report = replay(recording, writer);
  writer.end();
  out.flush();
  if (!out) throw InvalidArgument(str("cannot write a trace to ", trace_path));
  return report;
}

}  // namespace quire
