#include "engine/beam_search.h"

#include <algorithm>
#include <cmath>

#include "util/check.h"

namespace quire {
namespace {

constexpr size_t kNoNode = 0;  // before the first token

}  // namespace

BeamSearch::BeamSearch(const SamplingParams& params, std::vector<int32_t> stop_token_ids)
    : beam_width_(static_cast<size_t>(params.beam_width)),
      num_returned_(static_cast<size_t>(params.n)),
      max_tokens_(params.max_tokens),
      min_tokens_(params.min_tokens),
      length_penalty_(static_cast<double>(params.length_penalty)),
      early_stopping_(params.early_stopping),
      num_reported_(static_cast<size_t>(params.logprobs.value_or(0))),
      stop_token_ids_(std::move(stop_token_ids)),
      num_kept_(beam_width_ * std::max<size_t>(2, 1 + stop_token_ids_.size())),
      nodes_(1),
      beams_(1) {
  // Stop tokens that come too early are left out.
  const size_t num_left_out = min_tokens_ > 0 ? stop_token_ids_.size() : 0;
  num_candidates_ = static_cast<int32_t>(std::max(num_kept_ + num_left_out, num_reported_));
}

double BeamSearch::score(double logprob, int32_t length) const {
  return logprob / std::pow(static_cast<double>(length), length_penalty_);
}

bool BeamSearch::is_stop(int32_t token_id) const {
  return std::ranges::find(stop_token_ids_, token_id) != stop_token_ids_.end();
}

bool BeamSearch::advance(std::span<const std::span<const Logprob>> candidates) {
  QUIRE_CHECK(candidates.size() == beams_.size(), candidates.size(), " of ", beams_.size());
  const bool stops_too_early = length_ + 1 < min_tokens_;
  continuations_.clear();
  for (size_t beam = 0; beam < beams_.size(); ++beam) {
    size_t num_left = num_kept_;
    for (size_t rank = 0; rank < candidates[beam].size() && num_left > 0; ++rank) {
      const Logprob& next = candidates[beam][rank];
      if ((stops_too_early && is_stop(next.token_id)) || std::isnan(next.logprob)) continue;
      continuations_.push_back({beam, rank, beams_[beam].logprob + static_cast<double>(next.logprob)});
      --num_left;
    }
  }
  std::ranges::stable_sort(
      continuations_, [](const Continuation& a, const Continuation& b) { return a.logprob > b.logprob; });
  if (continuations_.size() > num_kept_) continuations_.resize(num_kept_);

  ++length_;
  beams_before_.swap(beams_);
  beams_.clear();
  for (size_t place = 0; place < continuations_.size(); ++place) {
    const Continuation& next = continuations_[place];
    const Logprob& chosen = candidates[next.beam][next.rank];
    const bool stops = is_stop(chosen.token_id);
    const bool ends = stops || length_ >= max_tokens_;
    if (ends ? place >= beam_width_ : beams_.size() >= beam_width_) continue;
    const Beam& before = beams_before_[next.beam];
    if (!ends) {
      beams_.push_back(
          {add_node(before.node, chosen, candidates[next.beam]), next.beam, chosen.token_id, next.logprob});
      continue;
    }
    const double its_score = score(next.logprob, length_);
    const auto better =
        std::ranges::find_if(ended_, [&](const Ended& other) { return other.score < its_score; });
    if (better == ended_.end() && ended_.size() >= beam_width_) continue;
    ended_.insert(better, {add_node(before.node, chosen, candidates[next.beam]), its_score,
                           stops ? FinishReason::kStop : FinishReason::kLength});
    if (ended_.size() > beam_width_) ended_.pop_back();
  }
  if (beams_.empty()) return false;
  return ended_.size() < beam_width_ || (early_stopping_ != EarlyStopping::kTrue && may_improve());
}

// Whether the likeliest that goes on could become better than the worst that ended. Log-probabilities only
// fall, but a length penalty makes up for that.
bool BeamSearch::may_improve() const {
  const bool looks_ahead = early_stopping_ == EarlyStopping::kNever && length_penalty_ > 0;
  return score(beams_.front().logprob, looks_ahead ? max_tokens_ : length_) > ended_.back().score;
}

size_t BeamSearch::add_node(size_t before, const Logprob& chosen, std::span<const Logprob> likeliest) {
  Node& node = nodes_.emplace_back();
  node.before = before;
  const auto reported = likeliest.first(std::min(num_reported_, likeliest.size()));
  node.logprobs.reserve(1 + reported.size());
  node.logprobs.push_back(chosen);
  node.logprobs.insert(node.logprobs.end(), reported.begin(), reported.end());
  return nodes_.size() - 1;
}

BeamSearch::Sequence BeamSearch::sequence(size_t node, FinishReason reason) const {
  Sequence result;
  result.finish_reason = reason;
  for (; node != kNoNode; node = nodes_[node].before) {
    result.token_ids.push_back(nodes_[node].logprobs.front().token_id);
    result.logprobs.push_back(nodes_[node].logprobs);
  }
  std::ranges::reverse(result.token_ids);
  std::ranges::reverse(result.logprobs);
  return result;
}

std::vector<BeamSearch::Sequence> BeamSearch::best() const {
  std::vector<Sequence> result;
  for (const Ended& ended : ended_)
    if (result.size() < num_returned_) result.push_back(sequence(ended.node, ended.reason));
  for (const Beam& beam : beams_)
    if (result.size() < num_returned_) result.push_back(sequence(beam.node, FinishReason::kNone));
  return result;
}

}  // namespace quire
