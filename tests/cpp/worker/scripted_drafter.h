// Drafts from what is known of the end: the tokens that a run without drafts gave.
#pragma once

#include <functional>
#include <map>
#include <vector>

#include "worker/drafter.h"

namespace quire {

class ScriptedDrafter final : public Drafter {
 public:
  using Outputs = std::map<RequestId, std::vector<int32_t>>;
  // How many drafts, and how many of them are right.
  struct Share {
    int32_t num_drafts = 0, num_right = 0;
  };
  // What is proposed at the place that a request has come to.
  using Script = std::function<Share(RequestId request_id, size_t num_output_tokens)>;

  ScriptedDrafter(Outputs outputs, Script script)
      : outputs_(std::move(outputs)), script_(std::move(script)) {}

  void add_request(RequestId request_id, std::span<const int32_t> prompt_token_ids,
                   std::span<const int32_t>) override {
    num_output_tokens_[request_id] = 0;
    num_prompt_tokens += prompt_token_ids.size();
  }
  void remove_request(RequestId request_id) override { num_output_tokens_.erase(request_id); }
  int32_t propose(RequestId request_id, std::span<const int32_t> new_token_ids,
                  std::span<int32_t> drafts) override {
    size_t& num_output_tokens = num_output_tokens_.at(request_id);
    num_output_tokens += new_token_ids.size();
    const std::vector<int32_t>& output = outputs_.at(request_id);
    const Share share = script_(request_id, num_output_tokens);
    for (int32_t i = 0; i < share.num_drafts; ++i) {
      const size_t place = num_output_tokens + static_cast<size_t>(i);
      const int32_t right = place < output.size() ? output[place] : 7;
      drafts[static_cast<size_t>(i)] = i < share.num_right ? right : right == 0 ? 1 : right - 1;
    }
    return share.num_drafts;
  }
  // Prompt tokens of all requests that the drafter was told of.
  size_t num_prompt_tokens = 0;
  // Requests that have not gone.
  size_t num_requests() const { return num_output_tokens_.size(); }

 private:
  Outputs outputs_;
  Script script_;
  std::map<RequestId, size_t> num_output_tokens_;
};

}  // namespace quire
