#include "scheduler/request_queue.h"

#include <set>

#include "util/check.h"

namespace quire {
namespace {

bool arrived_before(const Request& a, const Request& b) { return a.arrival_order < b.arrival_order; }

// Arrival order is kept through preemption: a preempted request is older than any that still waits to run.
struct Fcfs {
  bool operator()(const Request* a, const Request* b) const { return arrived_before(*a, *b); }
};

struct Priority {
  bool operator()(const Request* a, const Request* b) const {
    return a->priority() != b->priority() ? a->priority() < b->priority() : arrived_before(*a, *b);
  }
};

template <typename Order>
class OrderedQueue final : public RequestQueue {
 public:
  void add(Request& request) override { requests_.insert(&request); }
  void add_preempted(Request& request) override { requests_.insert(&request); }
  void remove(Request& request) override {
    QUIRE_CHECK(requests_.erase(&request) == 1, "request ", request.id(), " is not queued");
  }
  Request* front() const override { return requests_.empty() ? nullptr : *requests_.begin(); }
  size_t size() const override { return requests_.size(); }
  bool preempt_before(const Request& a, const Request& b) const override { return Order{}(&b, &a); }

 private:
  std::set<Request*, Order> requests_;
};

}  // namespace

std::unique_ptr<RequestQueue> make_request_queue(const std::string& policy) {
  if (policy == "fcfs") return std::make_unique<OrderedQueue<Fcfs>>();
  if (policy == "priority") return std::make_unique<OrderedQueue<Priority>>();
  throw InvalidArgument(str("scheduling_policy must be 'fcfs' or 'priority', got ", policy));
}

}  // namespace quire
