#include "tensors.h"

#include <cstring>

namespace quire::triton {

const std::vector<TensorSpec>& input_specs() {
  static const auto* const specs = new std::vector<TensorSpec>{
      {"text_input", TRITONSERVER_TYPE_BYTES, "TYPE_STRING", {1}},
      {"input_ids", TRITONSERVER_TYPE_INT32, "TYPE_INT32", {-1}},
      {"stream", TRITONSERVER_TYPE_BOOL, "TYPE_BOOL", {1}},
      {"sampling_parameters", TRITONSERVER_TYPE_BYTES, "TYPE_STRING", {1}},
      {"exclude_input_in_output", TRITONSERVER_TYPE_BOOL, "TYPE_BOOL", {1}},
      {"return_finish_reason", TRITONSERVER_TYPE_BOOL, "TYPE_BOOL", {1}},
      {"return_cumulative_logprob", TRITONSERVER_TYPE_BOOL, "TYPE_BOOL", {1}},
      {"return_logprobs", TRITONSERVER_TYPE_BOOL, "TYPE_BOOL", {1}},
      {"return_prompt_logprobs", TRITONSERVER_TYPE_BOOL, "TYPE_BOOL", {1}},
      {"return_num_input_tokens", TRITONSERVER_TYPE_BOOL, "TYPE_BOOL", {1}},
      {"return_num_output_tokens", TRITONSERVER_TYPE_BOOL, "TYPE_BOOL", {1}},
      {"return_output_ids", TRITONSERVER_TYPE_BOOL, "TYPE_BOOL", {1}},
      {"return_usage", TRITONSERVER_TYPE_BOOL, "TYPE_BOOL", {1}},
      {"request_id", TRITONSERVER_TYPE_BYTES, "TYPE_STRING", {1}},
      {"cancel", TRITONSERVER_TYPE_BOOL, "TYPE_BOOL", {1}},
      {"lora_name", TRITONSERVER_TYPE_BYTES, "TYPE_STRING", {1}},
      {"stop_words", TRITONSERVER_TYPE_BYTES, "TYPE_STRING", {-1}},
      {"bad_words", TRITONSERVER_TYPE_BYTES, "TYPE_STRING", {-1}},
      {"messages", TRITONSERVER_TYPE_BYTES, "TYPE_STRING", {1}},
      {"tools", TRITONSERVER_TYPE_BYTES, "TYPE_STRING", {1}},
      {"return_message", TRITONSERVER_TYPE_BOOL, "TYPE_BOOL", {1}},
      // What else clients of TensorRT-LLM's models send.
      {"max_tokens", TRITONSERVER_TYPE_INT32, "TYPE_INT32", {1}, /*if_batched=*/true},
      {"min_length", TRITONSERVER_TYPE_INT32, "TYPE_INT32", {1}, /*if_batched=*/true},
      {"end_id", TRITONSERVER_TYPE_INT32, "TYPE_INT32", {1}, /*if_batched=*/true},
      {"pad_id", TRITONSERVER_TYPE_INT32, "TYPE_INT32", {1}, /*if_batched=*/true},
      {"temperature", TRITONSERVER_TYPE_FP32, "TYPE_FP32", {1}, /*if_batched=*/true},
      {"top_k", TRITONSERVER_TYPE_INT32, "TYPE_INT32", {1}, /*if_batched=*/true},
      {"top_p", TRITONSERVER_TYPE_FP32, "TYPE_FP32", {1}, /*if_batched=*/true},
      {"repetition_penalty", TRITONSERVER_TYPE_FP32, "TYPE_FP32", {1}, /*if_batched=*/true},
      {"presence_penalty", TRITONSERVER_TYPE_FP32, "TYPE_FP32", {1}, /*if_batched=*/true},
      {"frequency_penalty", TRITONSERVER_TYPE_FP32, "TYPE_FP32", {1}, /*if_batched=*/true},
      {"seed", TRITONSERVER_TYPE_UINT64, "TYPE_UINT64", {1}, /*if_batched=*/true},
      {"random_seed", TRITONSERVER_TYPE_UINT64, "TYPE_UINT64", {1}, /*if_batched=*/true},
      {"beam_width", TRITONSERVER_TYPE_INT32, "TYPE_INT32", {1}, /*if_batched=*/true},
      {"return_log_probs", TRITONSERVER_TYPE_BOOL, "TYPE_BOOL", {1}, /*if_batched=*/true},
  };
  return *specs;  // never destroyed: threads may look at it when the process exits
}

const std::vector<TensorSpec>& output_specs() {
  static const auto* const specs = new std::vector<TensorSpec>{
      {"text_output", TRITONSERVER_TYPE_BYTES, "TYPE_STRING", {-1}},
      {"output_ids", TRITONSERVER_TYPE_INT32, "TYPE_INT32", {-1, -1}},
      {"finish_reason", TRITONSERVER_TYPE_BYTES, "TYPE_STRING", {-1}},
      {"cumulative_logprob", TRITONSERVER_TYPE_FP32, "TYPE_FP32", {-1}},
      {"logprobs", TRITONSERVER_TYPE_BYTES, "TYPE_STRING", {-1}},
      {"prompt_logprobs", TRITONSERVER_TYPE_BYTES, "TYPE_STRING", {1}},
      {"num_input_tokens", TRITONSERVER_TYPE_UINT32, "TYPE_UINT32", {1}},
      {"num_output_tokens", TRITONSERVER_TYPE_UINT32, "TYPE_UINT32", {-1}},
      {"cum_log_probs", TRITONSERVER_TYPE_FP32, "TYPE_FP32", {-1}},
      {"output_log_probs", TRITONSERVER_TYPE_FP32, "TYPE_FP32", {-1, -1}},
      {"message", TRITONSERVER_TYPE_BYTES, "TYPE_STRING", {-1}},
      {"usage", TRITONSERVER_TYPE_BYTES, "TYPE_STRING", {1}},
  };
  return *specs;  // never destroyed: threads may look at it when the process exits
}

const char* datatype_name(TRITONSERVER_DataType datatype) {
#define QUIRE_TRITON_NAME(enumerator, value) \
  case enumerator: return std::strrchr(#enumerator, '_') + 1;
  switch (datatype) { QUIRE_TRITON_DATA_TYPES(QUIRE_TRITON_NAME) }
#undef QUIRE_TRITON_NAME
  return "INVALID";
}

}  // namespace quire::triton
