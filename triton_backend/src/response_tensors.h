// What the engine gave, as output tensors.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "quire/chat.h"
#include "quire/request_output.h"
#include "quire/tokenizer.h"
#include "request_adapter.h"
#include "tensors.h"

namespace quire::triton {

// Turns the outputs of one request into tensors, in order. Not thread-safe.
class ResponseTensors {
 public:
  // `prompt` is what is put before the first output of each completion; `tokenizer` may be null, and then
  // logprobs name no tokens. `n` is the request's; it is believed with the first output, when the engine has
  // accepted it.
  ResponseTensors(const ResponseOptions& options, int32_t n, std::string prompt,
                  std::shared_ptr<const Tokenizer> tokenizer, ChatAnswerOptions chat = {});

  // A row for each of the n completions, whether or not `output` has news of it. `tensors` is overwritten.
  // False when a client that streams messages would learn nothing from them: a parser holds the text back.
  bool build(const RequestOutput& output, std::vector<OutputTensor>& tensors);

 private:
  bool add_messages(std::string& bytes);
  std::string logprobs_json(const std::vector<PositionLogprobs>& all) const;
  std::string usage_json(const RequestOutput& output) const;

  ResponseOptions options_;
  std::string prompt_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  int32_t n_;
  std::vector<FinishReason> finish_reasons_;  // of completions that ended in an earlier response
  std::vector<decltype(CompletionOutput::stop_reason)> stop_reasons_;
  std::vector<double> cumulative_logprobs_;
  std::vector<const CompletionOutput*> rows_;
  ChatAnswerOptions chat_;
  std::vector<ChatMessageWriter> writers_;  // one for each row, when messages are asked for
};

// What a request that generates nothing is answered.
std::vector<OutputTensor> reply(std::string_view text, FinishReason reason, bool batched);

}  // namespace quire::triton
