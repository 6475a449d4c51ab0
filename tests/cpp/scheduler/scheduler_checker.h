// A scheduler under operations that somebody chooses, and a plain model beside it that knows what must hold
// after each of them. Random numbers choose in property_test.cpp, a fuzzer's bytes in
// tests/fuzz/scheduler_fuzz.cpp.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "kv_cache/group_policy.h"
#include "scheduler/scheduler.h"
#include "util/str.h"

namespace quire {

class SchedulerChecker {
 public:
  // A number in [0, limit).
  using Choose = std::function<uint32_t(uint32_t limit)>;

  // What does not hold; the message says what, and of whom.
  struct Violation : std::runtime_error {
    using std::runtime_error::runtime_error;
  };

  explicit SchedulerChecker(Choose choose) : choose_(std::move(choose)) { make_scheduler(); }

  // One operation, then all checks.
  void operate();

  // Lets everything end. All memory must come back.
  void finish();

  const Scheduler& scheduler() const { return *scheduler_; }
  uint64_t num_finished() const { return num_finished_; }
  std::string describe() const;

 private:
  // What the model knows of a request.
  struct Model {
    int32_t num_prompt_tokens = 0, max_tokens = 0;
    int32_t num_tokens = 0;     // prompt and what came back
    int32_t num_computed = -1;  // where the next step must start; -1: the output says, it begins or resumes
    int32_t num_sampling = 0;   // steps in flight that sample
    int32_t order = 0;
    bool told = false;                        // the workers know it
    bool dropped = false;                     // results of steps in flight do not count
    std::vector<std::vector<BlockId>> table;  // as the workers have it
  };
  struct Step {
    SchedulerOutput scheduler_output;
    std::map<RequestId, std::vector<BlockId>> loaded;  // synchronously, for this step
    bool failed = false;
  };

  template <typename... Parts>
  static void require(bool ok, const Parts&... parts) {
    if (!ok) throw Violation(str(parts...));
  }

  struct Connector;

  void make_scheduler();
  void add();
  void abort();
  void end(RequestId id);
  void take_outputs(const EngineCoreOutputs& outputs);
  void schedule();
  // Nobody starves: the first in line begins unless something is truly short.
  void check_admission(const SchedulerOutput& scheduler_output);
  // Adapters lie where the loads so far have brought them.
  void check_loras(const SchedulerOutput& scheduler_output);
  void collect(bool trouble);
  void report_transfers(Step& step, ModelRunnerOutput& result, bool trouble);
  // What must hold between any two calls.
  void check() const;

  static constexpr int32_t kEos = 1;

  Choose choose_;
  SchedulerConfig config_;
  std::vector<GroupPolicy> policies_;
  std::shared_ptr<Connector> connector_;
  std::unique_ptr<Scheduler> scheduler_;
  std::map<RequestId, Model> live_;
  std::deque<Step> in_flight_;
  std::vector<LoraId> lora_slots_;  // what the workers have in each; 0: nothing
  RequestId last_id_ = 0;
  StepId last_step_ = 0;
  int32_t num_drafts_ = 0;
  int32_t num_free_at_start_ = 0;
  uint64_t num_finished_ = 0;
  double now_ = 1.0;
  bool draining_ = false;
};

}  // namespace quire
