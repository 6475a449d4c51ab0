// Requests and their adapters: who begins, who waits for a slot, and for whom an adapter comes ahead.
#include <algorithm>

#include "scheduler/scheduler.h"

namespace quire {
namespace {

// So many others begin at most before the oldest request whose adapter has no slot: then none does until it
// has run.
constexpr int32_t kMaxOvertakenForLora = 128;
// So many are passed over in one step: a batch is filled from a queue in which most wait for slots, and a
// step does not go through all of a long one.
int32_t most_passed_over(const SchedulerConfig& config) { return std::max(128, 2 * config.max_num_seqs); }

}  // namespace

void Scheduler::begin_lora(Request& request) {
  if (request.lora_id() == 0 || request.holds_lora()) return;
  loras_.begin(request.lora_id());
  lora_uses_.push_back(request.lora_use());
  request.hold_lora(true);
}

void Scheduler::end_lora(Request& request) {
  if (!request.holds_lora()) return;
  loras_.end(request.lora_id());
  request.hold_lora(false);
}

// The request is passed over while the adapters of running ones have all slots: those behind it may begin
// that need none, or one of these. Not for ever, and nobody looks through a long queue in each step.
Scheduler::Admission Scheduler::wait_for_lora(Request& request) {
  if (!first_without_lora_) first_without_lora_ = &request;
  if (first_without_lora_->num_overtaken() >= kMaxOvertakenForLora ||
      ++num_without_lora_ > most_passed_over(config_)) {
    return Admission::kStop;
  }
  waiting_->set_aside(request);
  asked_later_.push_back(&request);
  return Admission::kWaitsElsewhere;
}

// Another one began. False: nobody else does in this step.
bool Scheduler::overtake_for_lora() {
  first_without_lora_->overtake();
  return first_without_lora_->num_overtaken() < kMaxOvertakenForLora;
}

// What is decided here is in the recording, as is all of a step in which something is scheduled.
bool Scheduler::begins_when_its_lora_is_there(const Request& request) const {
  return request.lora_id() != 0 && !scheduled_.empty() && !loras_.has_slot(request.lora_id()) &&
         loras_.num_loads() >= config_.max_awaited_lora_loads;
}

// While the step at hand computes: of this one, and of those behind it that may begin in the next step.
void Scheduler::bring_loras_of_next_step(Request& first) {
  const auto num_seats = static_cast<int32_t>(static_cast<size_t>(config_.max_num_seqs) - running_.size());
  Request* request = &first;
  for (int32_t i = 0; request && i < num_seats; ++i) {
    if (request->lora_id() != 0) {
      if (!loras_.bring(request->lora_id())) return;
      lora_uses_.push_back(request->lora_use());
    }
    waiting_->set_aside(*request);
    asked_later_.push_back(request);
    request = waiting_->front(/*long_prefills=*/true);
  }
}

void Scheduler::count_running_loras(std::vector<RunningLora>& out) const {
  out.clear();
  if (loras_.max_loras() == 0) return;  // there are no adapters, and nothing to look for
  for (const Request* request : running_) {
    if (request->lora_id() == 0 || !request->is_running()) continue;
    const auto found = std::ranges::find(out, request->lora_id(), &RunningLora::lora_id);
    if (found == out.end()) {
      out.push_back({request->lora_id(), 1});
    } else {
      ++found->num_reqs;
    }
  }
}

}  // namespace quire
