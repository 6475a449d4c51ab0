#include "engine/beam_groups.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <utility>

#include "util/check.h"

namespace quire {
namespace {

// The front end counts its own from 1 on.
constexpr RequestId kIdsOfBeams = RequestId{1} << 63;

std::vector<int32_t> stop_token_ids(const EngineCoreRequest& request) {
  std::vector<int32_t> ids = *request.eos_token_ids;
  const std::vector<int32_t>& more = request.sampling_params->stop_token_ids;
  std::ranges::copy_if(more, std::back_inserter(ids),
                       [&](int32_t id) { return std::ranges::find(ids, id) == ids.end(); });
  return ids;
}

// A token of which only the likeliest are looked at.
SamplingParams one_token(int32_t num_logprobs) {
  SamplingParams params;
  params.temperature = 0;
  params.max_tokens = 1;
  params.logprobs = num_logprobs;
  return params;
}

}  // namespace

BeamGroups::Group::Group(EngineCoreRequest&& asked, BeamSearch&& beam_search)
    : request(std::move(asked)), of_beam(request), search(std::move(beam_search)) {
  of_beam.sampling_params = one_token(search.num_candidates());
  of_beam.eos_token_ids = {};
  of_beam.awaits_forks = 1;
}

void BeamGroups::add(EngineCoreRequest&& request, Actions& actions) {
  const RequestId id = request.request_id;
  BeamSearch search(*request.sampling_params, stop_token_ids(request));
  const auto [entry, inserted] = groups_.try_emplace(id, std::move(request), std::move(search));
  if (!inserted) throw InvalidArgument(str("request id ", id, " is already in use"));
  Group& group = entry->second;
  Beam first;
  first.token_ids = group.request.prompt_token_ids;
  begin_step(id, group, {std::move(first)}, actions);
}

// The parents are the beams before.
void BeamGroups::begin_step(RequestId group_id, Group& group, std::vector<Beam> beams, Actions& actions) {
  const std::vector<Beam> before = std::exchange(group.beams, std::move(beams));
  group.num_unknown = group.beams.size();
  std::vector<bool> goes_on(before.size());
  for (size_t i = 0; i < group.beams.size(); ++i) {
    Beam& beam = group.beams[i];
    beam.request_id = kIdsOfBeams + num_made_++;
    places_[beam.request_id] = {group_id, i};
    EngineCoreRequest& request = actions.to_add.emplace_back(group.of_beam);
    request.request_id = beam.request_id;
    request.prompt_token_ids = beam.token_ids;
    if (before.empty()) continue;
    const size_t parent = group.search.beams()[i].parent;
    goes_on[parent] = true;
    request.fork_of = before[parent].request_id;
    request.queue_deadline = 0.0;
  }
  for (size_t i = 0; i < before.size(); ++i)
    if (!goes_on[i]) actions.to_finish.push_back(before[i].request_id);
}

bool BeamGroups::advance(RequestId group_id, Group& group, Actions& actions) {
  std::vector<std::span<const Logprob>> candidates;
  for (const Beam& beam : group.beams) candidates.emplace_back(beam.candidates);
  if (!group.search.advance(candidates)) return false;
  std::vector<Beam> next;
  for (const BeamSearch::Beam& beam : group.search.beams()) {
    const std::vector<int32_t>& before = *group.beams[beam.parent].token_ids;
    std::vector<int32_t> token_ids;
    token_ids.reserve(before.size() + 1);
    token_ids = before;
    token_ids.push_back(beam.token_id);
    next.emplace_back().token_ids = std::move(token_ids);
  }
  begin_step(group_id, group, std::move(next), actions);
  return true;
}

void BeamGroups::report(const Group& group, FinishReason reason, const std::string& error,
                        EngineCoreOutputs& out) {
  std::vector<BeamSearch::Sequence> best;
  if (reason != FinishReason::kError) best = group.search.best();
  best.resize(static_cast<size_t>(group.request.sampling_params->n));
  const std::vector<int32_t>& eos = *group.request.eos_token_ids;
  for (size_t i = 0; i < best.size(); ++i) {
    BeamSearch::Sequence& sequence = best[i];
    EngineCoreOutput& output = out.outputs.emplace_back();
    output.request_id = group.request.request_id + i;
    output.first_token = static_cast<uint32_t>(out.token_ids.size());
    output.num_tokens = static_cast<int32_t>(sequence.token_ids.size());
    out.token_ids.insert(out.token_ids.end(), sequence.token_ids.begin(), sequence.token_ids.end());
    output.new_logprobs = std::move(sequence.logprobs);
    // Of a search that was cut short not even those that ended are what it would have found.
    output.finish_reason = reason == FinishReason::kNone ? sequence.finish_reason : reason;
    if (output.finish_reason == FinishReason::kNone) {
      output.finish_reason = FinishReason::kError;
      output.error = std::string("the beam search has no answer: the model's logits are not finite");
      continue;
    }
    if (output.finish_reason == FinishReason::kStop) {
      const int32_t last = sequence.token_ids.back();
      if (std::ranges::find(eos, last) == eos.end()) output.stop_token_id = last;
    }
    if (output.finish_reason == reason) output.error = error;
    output.num_cached_tokens = group.num_cached_tokens;
    output.first_scheduled_time = group.first_scheduled_time;
  }
}

void BeamGroups::end(RequestId group_id, Actions& actions) {
  const auto found = groups_.find(group_id);
  for (const Beam& beam : found->second.beams) {
    places_.erase(beam.request_id);
    actions.to_finish.push_back(beam.request_id);
  }
  groups_.erase(found);
}

size_t BeamGroups::abort(RequestId id, Actions& actions) {
  const auto found = groups_.find(id);
  if (found == groups_.end()) return 0;
  const auto num_ids = static_cast<size_t>(found->second.request.sampling_params->n);
  end(id, actions);
  return num_ids;
}

void BeamGroups::take_outputs(EngineCoreOutputs& outputs, Actions& actions) {
  if (groups_.empty()) return;
  // Others keep their order, and the prompts' log-probabilities their places.
  taken_.clear();
  size_t num_left = 0;
  size_t next_prompt = 0;
  for (size_t i = 0; i < outputs.outputs.size(); ++i) {
    EngineCoreOutput& output = outputs.outputs[i];
    if (output.request_id >= kIdsOfBeams) {
      taken_.push_back(std::move(output));
      continue;
    }
    auto& prompts = outputs.prompt_logprobs;
    if (next_prompt < prompts.size() && prompts[next_prompt].output_index == i)
      prompts[next_prompt++].output_index = static_cast<uint32_t>(num_left);
    if (num_left != i) outputs.outputs[num_left] = std::move(output);
    ++num_left;
  }
  outputs.outputs.resize(num_left);

  for (EngineCoreOutput& output : taken_) {
    const auto found = places_.find(output.request_id);
    if (found == places_.end()) continue;  // its group has ended
    const Place place = found->second;
    places_.erase(found);
    Group& group = groups_.at(place.group_id);
    if (group.first_scheduled_time == 0.0) {
      group.first_scheduled_time = output.first_scheduled_time;
      group.num_cached_tokens = output.num_cached_tokens;
    }
    const bool is_computed =
        output.finish_reason == FinishReason::kLength && output.new_logprobs->size() == 1;
    if (is_computed) {
      // The first is the one that was sampled, which is of no account.
      const PositionLogprobs& all = output.new_logprobs->front();
      group.beams[place.beam].candidates.assign(all.begin() + 1, all.end());
      if (--group.num_unknown > 0 || advance(place.group_id, group, actions)) continue;
    }
    report(group, is_computed ? FinishReason::kNone : output.finish_reason, *output.error, outputs);
    end(place.group_id, actions);
  }
}

}  // namespace quire
