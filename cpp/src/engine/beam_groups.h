// Requests that search with beams, as requests that each compute one token.
//
// Every beam of every step is a request of the scheduler's: a fork of the one that it goes on from, which
// stays until all beams of the step are known. So beams share the prompt's keys and values, and everything
// but the last block of their answers, by reference; they wait, run, and are preempted like all others.
//
// Not thread-safe. Owned by EngineCore, called on its thread.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "engine/beam_search.h"
#include "messages/engine_core_messages.h"

namespace quire {

class BeamGroups {
 public:
  // What is to be done with the scheduler's requests, in this order.
  struct Actions {
    std::vector<EngineCoreRequest> to_add;
    std::vector<RequestId> to_finish;
    void clear() {
      to_add.clear();
      to_finish.clear();
    }
  };

  bool empty() const { return groups_.empty(); }

  // Takes a request with a beam_width above 1. Its answers are reported under its id and the ones that
  // follow, as many as it has `n`.
  void add(EngineCoreRequest&& request, Actions& actions);
  // Returns how many ids, from this one on, are the group's, which has ended; 0 when it is no group's first.
  size_t abort(RequestId id, Actions& actions);
  // Takes what a step gave to beams out of `outputs`, and puts the answers of groups that have ended there.
  void take_outputs(EngineCoreOutputs& outputs, Actions& actions);

 private:
  struct Beam {
    RequestId request_id = 0;
    Shared<std::vector<int32_t>> token_ids;  // the prompt, and what it has of an answer
    std::vector<Logprob> candidates;         // known when it has been computed
  };
  struct Group {
    Group(EngineCoreRequest&& asked, BeamSearch&& beam_search);
    EngineCoreRequest request;
    EngineCoreRequest of_beam;  // what the requests of all beams have in common
    BeamSearch search;
    std::vector<Beam> beams;
    size_t num_unknown = 0;  // beams that are still to be computed
    int32_t num_cached_tokens = 0;
    double first_scheduled_time = 0.0;
  };

  void begin_step(RequestId group_id, Group& group, std::vector<Beam> beams, Actions& actions);
  // False when the group has ended.
  bool advance(RequestId group_id, Group& group, Actions& actions);
  static void report(const Group& group, FinishReason reason, const std::string& error,
                     EngineCoreOutputs& out);
  void end(RequestId group_id, Actions& actions);

  std::unordered_map<RequestId, Group> groups_;  // by the ids of their requests
  struct Place {
    RequestId group_id = 0;
    size_t beam = 0;
  };
  std::unordered_map<RequestId, Place> places_;  // of requests that are to be computed
  uint64_t num_made_ = 0;
  std::vector<EngineCoreOutput> taken_;
};

}  // namespace quire
