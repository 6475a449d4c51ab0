#include "scheduler/request_queue.h"

#include <array>
#include <limits>
#include <set>
#include <unordered_map>
#include <utility>

#include "messages/scheduling_policy.h"
#include "util/check.h"

namespace quire {
namespace {

// Forks are as old as what they go on from.
bool arrived_before(const Request& a, const Request& b) {
  return a.arrival_order() != b.arrival_order() ? a.arrival_order() < b.arrival_order() : a.id() < b.id();
}

struct ByArrival {
  bool operator()(const Request* a, const Request* b) const { return arrived_before(*a, *b); }
};

struct ByPriority {
  bool operator()(const Request* a, const Request* b) const {
    return a->priority() != b->priority() ? a->priority() < b->priority() : arrived_before(*a, *b);
  }
};

// Requests in order, the long prefills apart, so that the first of either kind is at hand.
template <typename Order>
struct Lanes {
  std::set<Request*, Order> short_ones, long_ones;

  std::set<Request*, Order>& of(const Request& request) {
    return request.is_long_prefill() ? long_ones : short_ones;
  }
  void add(Request& request) { of(request).insert(&request); }
  void remove(Request& request) {
    QUIRE_CHECK(of(request).erase(&request) == 1, "request ", request.id(), " is not queued");
  }
  Request* front(bool long_prefills) const {
    Request* const first = short_ones.empty() ? nullptr : *short_ones.begin();
    if (!long_prefills || long_ones.empty()) return first;
    return first && Order{}(first, *long_ones.begin()) ? first : *long_ones.begin();
  }
  size_t size() const { return short_ones.size() + long_ones.size(); }
};

template <typename Order>
class OrderedQueue final : public RequestQueue {
 public:
  void add(Request& request) override { requests_.add(request); }
  void remove(Request& request) override { requests_.remove(request); }
  Request* front(bool long_prefills) override { return requests_.front(long_prefills); }
  size_t size() const override { return requests_.size(); }
  bool preempt_before(const Request& a, const Request& b) const override { return Order{}(&b, &a); }
  bool preempts_last() const override { return std::is_same_v<Order, ByArrival>; }

 private:
  Lanes<Order> requests_;
};

// Longest cached prefix first, among the oldest: what is cached now may be evicted by the time it is its
// turn.
class CacheAwareQueue final : public RequestQueue {
 public:
  explicit CacheAwareQueue(std::function<int32_t(const Request&)> count_cached_tokens)
      : count_cached_tokens_(std::move(count_cached_tokens)) {}

  void add(Request& request) override { requests_.add(request); }
  void remove(Request& request) override {
    if (Request* oldest = requests_.front(true); oldest && oldest != &request) oldest->overtake();
    requests_.remove(request);
  }
  void set_aside(Request& request) override { requests_.remove(request); }
  Request* front(bool long_prefills) override {
    Request* best = requests_.front(long_prefills);
    if (!best || best->num_overtaken() >= kMaxOvertaken) return best;
    int32_t most = count_cached_tokens_(*best);
    const auto look = [&](const std::set<Request*, ByArrival>& lane) {
      int32_t num_left = kWindow;
      for (Request* request : lane) {
        if (num_left-- == 0) break;
        const int32_t num_cached = count_cached_tokens_(*request);
        if (num_cached > most || (num_cached == most && arrived_before(*request, *best))) {
          most = num_cached;
          best = request;
        }
      }
    };
    look(requests_.short_ones);
    if (long_prefills) look(requests_.long_ones);
    return best;
  }
  size_t size() const override { return requests_.size(); }
  bool preempt_before(const Request& a, const Request& b) const override { return arrived_before(b, a); }

 private:
  static constexpr int32_t kWindow = 8;         // requests looked at: bounds the cost of a step
  static constexpr int32_t kMaxOvertaken = 64;  // then it is the oldest one's turn

  Lanes<ByArrival> requests_;
  std::function<int32_t(const Request&)> count_cached_tokens_;
};

// Virtual token counters after Sheng et al., "Fairness in Serving Large Language Models" (OSDI 2024): every
// user has a counter of tokens served, and the user with the lowest goes next. One who comes back after a
// pause is lifted to the lowest of those present, so that nobody saves up.
class FairQueue final : public RequestQueue {
 public:
  void add(Request& request) override {
    User& user = user_of(request);
    if (user.requests.size() == 0) user.counter = std::max(user.counter, lowest_counter());
    put_back(request);
  }
  // The user was there all the time, and is not lifted.
  void put_back(Request& request) override {
    User& user = user_of(request);
    leave(request.is_long_prefill(), user);
    user.requests.add(request);
    enter(request.is_long_prefill(), user);
    ++size_;
  }
  void remove(Request& request) override {
    set_aside(request);
    User& user = user_of(request);
    if (user.requests.of(request).empty()) last_counter_ = std::max(last_counter_, user.counter);
    if (users_.size() > kMaxUsers) forget_idle_users();
  }
  void set_aside(Request& request) override {
    User& user = user_of(request);
    leave(request.is_long_prefill(), user);
    user.requests.remove(request);
    enter(request.is_long_prefill(), user);
    --size_;
  }
  Request* front(bool long_prefills) override {
    const Entry* const entry = first(0);
    const Entry* const long_entry = long_prefills ? first(1) : nullptr;
    if (!long_entry) return entry ? entry->request : nullptr;
    return entry && *entry < *long_entry ? entry->request : long_entry->request;
  }
  size_t size() const override { return size_; }

  bool preempt_before(const Request& a, const Request& b) const override {
    const double counter_a = counter(a);
    const double counter_b = counter(b);
    return counter_a != counter_b ? counter_a > counter_b : arrived_before(b, a);
  }
  void charge(Request& request, int32_t num_prefill_tokens, int32_t num_decode_tokens) override {
    user_of(request).counter += kPrefillWeight * num_prefill_tokens + kDecodeWeight * num_decode_tokens;
  }
  bool charges() const override { return true; }
  void save(SchedulerSnapshot& out) const override {
    for (const auto& [name, user] : users_) out.user_counters.emplace_back(name, user.counter);
    out.last_counter = last_counter_;
  }
  void restore(const SchedulerSnapshot& snapshot) override {
    for (size_t lane : {0, 1}) {
      for (auto& [name, user] : users_) leave(lane, user);
    }
    for (const auto& [name, counter] : snapshot.user_counters) users_[name].counter = counter;
    for (size_t lane : {0, 1}) {
      for (auto& [name, user] : users_) enter(lane, user);
    }
    last_counter_ = snapshot.last_counter;
  }

 private:
  static constexpr double kPrefillWeight = 1.0;
  static constexpr double kDecodeWeight = 2.0;  // the paper's: a token alone costs more than one of many
  static constexpr size_t kMaxUsers = 10000;

  struct User;
  // A user's first request in a lane, and the user's counter when the entry was made.
  struct Entry {
    double counter = 0.0;
    Request* request = nullptr;  // null: no entry
    User* user = nullptr;
    bool operator<(const Entry& other) const {
      return counter != other.counter ? counter < other.counter : arrived_before(*request, *other.request);
    }
  };
  struct User {
    double counter = 0.0;
    std::array<Entry, 2> entries;  // its own, of waiting_
    Lanes<ByArrival> requests;
  };

  User& user_of(const Request& request) { return users_[request.user()]; }
  double counter(const Request& request) const {
    const auto found = users_.find(request.user());
    return found == users_.end() ? 0.0 : found->second.counter;
  }
  void enter(size_t lane, User& user) {
    const auto& requests = lane == 0 ? user.requests.short_ones : user.requests.long_ones;
    if (requests.empty()) return;
    user.entries[lane] = {user.counter, *requests.begin(), &user};
    waiting_[lane].insert(user.entries[lane]);
  }
  void leave(size_t lane, User& user) {
    if (!user.entries[lane].request) return;
    waiting_[lane].erase(user.entries[lane]);
    user.entries[lane] = {};
  }
  // Counters only rise, so an entry made before a charge sorts too early: it is made anew when it comes up.
  const Entry* first(size_t lane) {
    auto& waiting = waiting_[lane];
    while (!waiting.empty()) {
      const Entry& entry = *waiting.begin();
      if (entry.counter == entry.user->counter) return &entry;
      User& user = *entry.user;
      leave(lane, user);
      enter(lane, user);
    }
    return nullptr;
  }
  double lowest_counter() {
    double lowest = std::numeric_limits<double>::infinity();
    for (size_t lane : {0, 1}) {
      if (const Entry* entry = first(lane)) lowest = std::min(lowest, entry->counter);
    }
    return lowest == std::numeric_limits<double>::infinity() ? last_counter_ : lowest;
  }
  // Whoever would be lifted on coming back is as good as new.
  void forget_idle_users() {
    const double lowest = lowest_counter();
    std::erase_if(users_, [lowest](const auto& entry) {
      return entry.second.requests.size() == 0 && entry.second.counter <= lowest;
    });
  }

  std::unordered_map<std::string, User> users_;
  std::array<std::set<Entry>, 2> waiting_;  // of users with short, and with long, requests
  double last_counter_ = 0.0;
  size_t size_ = 0;
};

}  // namespace

std::unique_ptr<RequestQueue> make_request_queue(const std::string& policy,
                                                 std::function<int32_t(const Request&)> count_cached_tokens) {
  switch (find_scheduling_policy(policy)) {
    case SchedulingPolicy::kFcfs: return std::make_unique<OrderedQueue<ByArrival>>();
    case SchedulingPolicy::kPriority: return std::make_unique<OrderedQueue<ByPriority>>();
    case SchedulingPolicy::kCacheAware:
      return std::make_unique<CacheAwareQueue>(std::move(count_cached_tokens));
    case SchedulingPolicy::kFair: break;
  }
  return std::make_unique<FairQueue>();
}

}  // namespace quire
