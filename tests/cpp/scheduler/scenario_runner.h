// Runs a scenario: a text that sets up a scheduler, adds requests, and says what each step must do. The words
// are listed in tests/cpp/scenarios/README.md.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "scheduler/scenario_line.h"
#include "scheduler/scheduler.h"

namespace quire {

class ScenarioRunner {
 public:
  ScenarioRunner();
  ~ScenarioRunner();
  // Runs every line; what is not as it says becomes a test failure that names the line.
  void run_file(const std::string& path);

 private:
  struct Connector;
  struct Grammars;
  // What the "model" does for a request.
  struct Script {
    RequestId id = 0;
    int32_t stop_at = -1;  // this output (0 is the first) is end-of-sequence
    int32_t num_drafts = 0, num_accepted = 0;
    int32_t num_sampled = 0;
    std::string error;  // the next result is this error
  };

  void run_line(const ScenarioLine& line);
  void make_engine(const ScenarioLine& line);
  void add(const ScenarioLine& line);
  void schedule(const ScenarioLine& line);
  void collect(const ScenarioLine& line);
  void check_values(const ScenarioLine& line, const SchedulerOutput* scheduler_output,
                    const EngineCoreOutputs* outputs);
  std::string name_of(RequestId id) const;
  std::string names(const std::vector<RequestId>& ids) const;
  RequestId id_of(const std::string& name) const;

  std::shared_ptr<Connector> connector_;
  std::shared_ptr<Grammars> grammars_;
  std::unique_ptr<Scheduler> scheduler_;
  std::map<std::string, Script> scripts_;
  RingQueue<SchedulerOutput> in_flight_;
  EngineCoreOutputs advanced_;  // what advance() reported since the last collect
  ModelRunnerOutput extra_;     // connector results for the next collect
  bool fail_next_ = false;
  double now_ = 1.0;
  bool nothing_scheduled_ = false;
};

}  // namespace quire
