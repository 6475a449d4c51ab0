#include "server_objects.h"

#include <algorithm>

namespace quire::triton::host {

Ledger& Ledger::instance() {
  static auto* ledger = new Ledger;  // the backend's statics may outlive ours
  return *ledger;
}

void Ledger::violation(const std::string& what) {
  const std::lock_guard lock(mutex_);
  violations_.push_back(what);
}

void Ledger::end(Object* object, const char* function) {
  if (!object) return violation(std::string(function) + ": null");
  if (!object->alive.exchange(false, std::memory_order_relaxed)) {
    violation(std::string(function) + ": this " + object->kind + " has ended already");
  }
}

void Ledger::use(const Object* object, const char* function) {
  if (!object) return violation(std::string(function) + ": null");
  if (!object->alive.load(std::memory_order_relaxed)) {
    violation(std::string(function) + ": this " + object->kind + " has ended");
  }
}

std::vector<std::string> Ledger::violations() const {
  const std::lock_guard lock(mutex_);
  return violations_;
}

size_t Ledger::num_alive(std::string_view kind) const {
  static const std::set<std::string_view> kServersOwn = {"backend", "server", "model", "model instance",
                                                         "server's message"};
  const std::lock_guard lock(mutex_);
  return static_cast<size_t>(std::count_if(objects_.begin(), objects_.end(), [&](const auto& object) {
    return object->alive && (kind.empty() ? !kServersOwn.contains(object->kind) : object->kind == kind);
  }));
}

double Ledger::sum_of_metrics(const std::string& family,
                              const std::map<std::string, std::string>& labels) const {
  const std::lock_guard lock(mutex_);
  double sum = 0;
  for (const auto& object : objects_) {
    const auto* metric = dynamic_cast<const TRITONSERVER_Metric*>(object.get());
    if (!metric || !metric->alive || metric->family->name != family) continue;
    const bool fits = std::all_of(labels.begin(), labels.end(), [&](const auto& label) {
      const auto found = metric->labels.find(label.first);
      return found != metric->labels.end() && found->second == label.second;
    });
    if (!fits) continue;
    const bool counts = metric->family->metric_kind == TRITONSERVER_METRIC_KIND_HISTOGRAM;
    sum += counts ? static_cast<double>(metric->count) : metric->value.load();
  }
  return sum;
}

void Ledger::reset() {
  const std::lock_guard lock(mutex_);
  objects_.clear();
  violations_.clear();
}

void Ledger::forget_the_dead() {
  const std::lock_guard lock(mutex_);
  std::erase_if(objects_, [](const auto& object) { return !object->alive; });
}

Faults& Faults::instance() {
  static auto* faults = new Faults;
  return *faults;
}

void Faults::arm(const std::string& function, int nth_call, TRITONSERVER_Error_Code code) {
  const std::lock_guard lock(mutex_);
  function_ = function;
  nth_call_ = nth_call;
  calls_ = 0;
  fired_ = false;
  code_ = code;
  armed_ = true;
}

bool Faults::disarm() {
  const std::lock_guard lock(mutex_);
  armed_ = false;
  return fired_;
}

TRITONSERVER_Error* Faults::hit(const char* function) {
  if (!armed_.load(std::memory_order_relaxed)) return nullptr;
  const std::lock_guard lock(mutex_);
  if (!armed_ || function_ != function || calls_++ != nth_call_) return nullptr;
  fired_ = true;
  return ledger().make<TRITONSERVER_Error>(code_, std::string("injected into ") + function);
}

}  // namespace quire::triton::host
