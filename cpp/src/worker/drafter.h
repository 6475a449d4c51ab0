// Speculation: a request computes drafts, tokens that may follow its last one, in the step of that one.
//
// A token is sampled at each of the 1 + k positions, from the logits, the seed, the penalties and the bans of
// that position, as it would be without drafts. Drafts are kept as far as they equal what was sampled in
// their places, and the token sampled behind the last of those is kept too. So a request's tokens and
// log-probabilities are those that it has without drafts, random or not; only the number of steps differs.
// Bitwise so where kernels compute a row of one token as they do a row of several, as the CPU's do; a device
// that rounds them differently may choose differently between tokens that are as good as equally likely.
// A grammar's masks come for each of the positions, and drafts that it does not permit are not computed. It
// may propose drafts itself, with or without a drafter: what must follow (StructuredOutputGrammar::propose).
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>

#include "messages/engine_core_messages.h"

namespace quire {

// Guesses what requests go on with. Belongs to one worker, and is called between its steps: whichever thread
// that is, never two at a time.
class Drafter {
 public:
  virtual ~Drafter() = default;

  // A request that comes to the worker, and one that will not be named again.
  virtual void add_request(RequestId request_id, std::span<const int32_t> prompt_token_ids,
                           std::span<const int32_t> output_token_ids) = 0;
  virtual void remove_request(RequestId request_id) = 0;

  // A step gave the request `new_token_ids`, at least one; those behind its end, if it has come to that, are
  // among them. Writes up to drafts.size() tokens that may follow them, and returns how many; 0: it goes on
  // without. The first that is no id of the vocabulary ends them.
  virtual int32_t propose(RequestId request_id, std::span<const int32_t> new_token_ids,
                          std::span<int32_t> drafts) = 0;
};

struct Speculation {
  int32_t num_speculative_tokens = 0;  // the most drafts that a request has in a step; 0: none
  std::shared_ptr<Drafter> drafter;    // of the rank whose results count; null: drafts are grammars'

  // Rows of logits that a step has at most.
  int32_t max_num_logits(int32_t max_num_seqs, int32_t max_num_batched_tokens) const {
    return std::min(max_num_seqs * (1 + num_speculative_tokens), max_num_batched_tokens);
  }
};

// How many drafts equal what was sampled in their places, from the first on. Those of id -1 never do.
inline int32_t num_accepted_drafts(std::span<const int32_t> sampled, std::span<const int32_t> drafts) {
  size_t count = 0;
  while (count < drafts.size() && drafts[count] >= 0 && sampled[count] == drafts[count]) ++count;
  return static_cast<int32_t>(count);
}

}  // namespace quire
