// The scheduling policies: in which order waiting requests are served, and which running one gives way.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "messages/recording.h"
#include "request/request.h"

namespace quire {

// Holds requests that are not running. Does not own them. Not thread-safe.
class RequestQueue {
 public:
  virtual ~RequestQueue() = default;

  // New, or preempted: a preempted request is older than any that never ran, and each policy puts it where
  // its age says.
  virtual void add(Request& request) = 0;
  virtual void remove(Request& request) = 0;
  // The next to serve, or null; without `long_prefills`, the next whose is_long_prefill is not set.
  virtual Request* front(bool long_prefills) = 0;
  // It cannot begin in this step, and those behind it are asked: nobody has overtaken it, and it has not
  // gone.
  virtual void set_aside(Request& request) { remove(request); }
  // At the end of the step, all that were set aside.
  virtual void put_back(Request& request) { add(request); }
  virtual size_t size() const = 0;

  // Whether, of two running requests, `a` is preempted before `b`.
  virtual bool preempt_before(const Request& a, const Request& b) const = 0;
  // Whether the running request that began last is always the first to give way.
  virtual bool preempts_last() const { return false; }
  // These tokens of the request are about to be computed; called for every request of a step.
  virtual void charge(Request&, int32_t num_prefill_tokens, int32_t num_decode_tokens) {
    (void)num_prefill_tokens, (void)num_decode_tokens;
  }
  virtual bool charges() const { return false; }
  // What the policy remembers of users, waiting or not.
  virtual void save(SchedulerSnapshot&) const {}
  // After the requests that wait were added.
  virtual void restore(const SchedulerSnapshot&) {}
};

// "fcfs": arrival order.
// "priority": a lower value first, then arrival; a request is never preempted for one that waits.
// "cache_aware": of the oldest few, the one with the longest cached prefix; none is overtaken for ever.
// "fair": the user who was served least, then arrival.
// Throws InvalidArgument for another name. `count_cached_tokens` serves "cache_aware".
std::unique_ptr<RequestQueue> make_request_queue(const std::string& policy,
                                                 std::function<int32_t(const Request&)> count_cached_tokens);

}  // namespace quire
