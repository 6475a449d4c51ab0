// A request of the server's, checked and turned into one for the engine.
#pragma once

#include <cstdint>
#include <string>

#include "model_config.h"
#include "quire/chat.h"
#include "quire/engine.h"
#include "tensors.h"

namespace quire::triton {

// The tensors that a response carries, and how.
struct ResponseOptions {
  bool stream = false;         // deltas, as they come; else one response
  bool prepend_input = false;  // the prompt's text before the first output
  bool text_output = true;
  bool output_ids = false;
  bool finish_reason = false;
  bool cumulative_logprob = false;
  bool logprobs = false;
  bool prompt_logprobs = false;
  bool cum_log_probs = false;  // TensorRT-LLM's names and forms of the two before
  bool output_log_probs = false;
  bool num_input_tokens = false;
  bool num_output_tokens = false;
  bool message = false;  // an assistant's message, or its deltas
  bool usage = false;
  bool batched = false;  // shapes have a batch dimension, of 1

  // Whether all that is sent follows from the messages.
  bool only_messages() const {
    return message && !text_output && !output_ids && !cumulative_logprob && !logprobs && !prompt_logprobs &&
           !cum_log_probs && !output_log_probs && !num_input_tokens && !num_output_tokens && !usage;
  }
};

// What a request does to the model's adapters, instead of generating.
struct LoraControl {
  enum class Action : uint8_t { kNone, kLoad, kUnload, kList };
  Action action = Action::kNone;
  std::string lora_name;
  std::string lora_path;      // as the client has written it
  bool load_inplace = false;  // one of this name may be there, and is replaced
};

struct AdaptedRequest {
  EngineRequest request;  // its request_id is empty: names are the model's business
  // The prompt, if it is a conversation's, and what else the request says of one: for prepare_chat.
  ChatRequest chat;
  ResponseOptions response;
  std::string request_id;    // the `request_id` input, else the client's id
  bool unique_id = false;    // it came as an input, and must not be in use
  bool cancel = false;       // cancels the requests called request_id; nothing else matters then
  LoraControl lora_control;  // unless it is kNone, nothing else matters
  uint64_t timeout_us = 0;   // the client's timeout; 0: none, or its deadline is shorter

  // Whether there is anything for prepare_chat.
  bool is_chat() const { return response.message || chat != ChatRequest(); }
};

// Every input may also come as a request parameter of the same name, and so may every field of SamplingParams
// and of ChatRequest (quire/fields.h): that is how /generate passes JSON scalars. An input wins over a
// parameter, `sampling_parameters` over single fields; only lora_name must be the same everywhere.
// TensorRT-LLM's inputs are taken too (stop_words, end_id, ...). Throws InvalidArgument naming the input or
// parameter, the value, and what would do.
AdaptedRequest adapt_request(const IncomingRequest& incoming, const ModelSettings& model);

}  // namespace quire::triton
