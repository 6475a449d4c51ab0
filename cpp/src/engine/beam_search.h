// Beam search over one prompt: which sequences go on, and which have ended.
//
// The algorithm of transformers' GenerationMixin._beam_search, whose sequences and scores it gives: of all
// continuations of all beams the likeliest (1 + stop tokens) x beam_width are looked at; the beam_width
// likeliest that do not end go on; those among the beam_width likeliest that end are kept if they are among
// the beam_width best so far, by log-probability over length^length_penalty. Ties go to the beam, then the
// token, that came first.
//
// Knows no engine. Not thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "quire/request_output.h"
#include "quire/sampling_params.h"

namespace quire {

class BeamSearch {
 public:
  // `params`: a request's, with max_tokens within max_model_len. `stop_token_ids` end a sequence, which keeps
  // them.
  BeamSearch(const SamplingParams& params, std::vector<int32_t> stop_token_ids);

  // How many of the likeliest tokens that may follow each beam are to be given to advance().
  int32_t num_candidates() const { return num_candidates_; }

  // A sequence that goes on.
  struct Beam {
    size_t node = 0;        // its last token
    size_t parent = 0;      // which beam it goes on from, of those before the last advance()
    int32_t token_id = -1;  // that it goes on with
    double logprob = 0.0;   // of all its tokens
  };
  // One with no tokens before the first advance(), then at most beam_width of them, the likeliest first.
  std::span<const Beam> beams() const { return beams_; }

  // Takes what may follow: for each of the beams, its likeliest tokens in order. False when the search has
  // ended; it is then not called again.
  bool advance(std::span<const std::span<const Logprob>> candidates);

  struct Sequence {
    std::vector<int32_t> token_ids;
    std::vector<PositionLogprobs> logprobs;  // the chosen one first, then params.logprobs of the likeliest
    FinishReason finish_reason = FinishReason::kNone;  // kStop or kLength; kNone: it went on
  };
  // The best so far, in order: those that ended, then those that go on; at most params.n of them.
  std::vector<Sequence> best() const;

 private:
  // A token of some sequence, and what came before it.
  struct Node {
    size_t before = 0;
    PositionLogprobs logprobs;
  };
  struct Ended {
    size_t node = 0;
    double score = 0.0;
    FinishReason reason = FinishReason::kNone;
  };
  struct Continuation {
    size_t beam = 0;
    size_t rank = 0;
    double logprob = 0.0;
  };
  double score(double logprob, int32_t length) const;
  bool is_stop(int32_t token_id) const;
  bool may_improve() const;
  size_t add_node(size_t before, const Logprob& chosen, std::span<const Logprob> likeliest);
  Sequence sequence(size_t node, FinishReason reason) const;

  const size_t beam_width_;
  const size_t num_returned_;
  const int32_t max_tokens_;
  const int32_t min_tokens_;
  const double length_penalty_;
  const EarlyStopping early_stopping_;
  const size_t num_reported_;
  const std::vector<int32_t> stop_token_ids_;
  size_t num_kept_ = 0;  // continuations that are looked at
  int32_t num_candidates_ = 0;

  int32_t length_ = 0;  // of all that go on
  std::vector<Node> nodes_;
  std::vector<Beam> beams_, beams_before_;
  std::vector<Ended> ended_;  // at most beam_width_, the best first
  std::vector<Continuation> continuations_;
};

}  // namespace quire
