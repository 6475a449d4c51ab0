// The order in which waiting requests are served.
#pragma once

#include <memory>
#include <string>

#include "request/request.h"

namespace quire {

// Holds requests that are not running. Does not own them. Not thread-safe.
class RequestQueue {
 public:
  virtual ~RequestQueue() = default;
  virtual void add(Request& request) = 0;
  // A preempted request comes back: before those that never ran, where the policy lets it.
  virtual void add_preempted(Request& request) = 0;
  virtual void remove(Request& request) = 0;
  // The next to serve, or null.
  virtual Request* front() const = 0;
  virtual size_t size() const = 0;
  // Which of two running requests is preempted first.
  virtual bool preempt_before(const Request& a, const Request& b) const = 0;
};

// "fcfs": arrival order. "priority": a lower value first, then arrival.
std::unique_ptr<RequestQueue> make_request_queue(const std::string& policy);

}  // namespace quire
