#include "request_adapter.h"

#include <algorithm>
#include <cctype>
#include <utility>

#include "quire/fields.h"
#include "quire/utf8.h"
#include "request_values.h"
#include "server_api.h"

namespace quire::triton {
namespace {

bool is_input_name(const std::string& name) {
  const auto& specs = input_specs();
  return std::any_of(specs.begin(), specs.end(), [&](const TensorSpec& spec) { return name == spec.name; });
}

// Headers that the server forwards (--http-header-forward-pattern) come as parameters too. Those with a dash
// in their names cannot be fields of ours; others the model's configuration can name.
bool is_ignored(const std::string& name, const ModelSettings& model) {
  const auto same = [&](const std::string& ignored) {
    return std::equal(name.begin(), name.end(), ignored.begin(), ignored.end(), [](char a, char b) {
      return std::tolower(static_cast<unsigned char>(a)) == std::tolower(static_cast<unsigned char>(b));
    });
  };
  const auto& names = model.ignored_parameters;
  return name.find('-') != std::string::npos || std::any_of(names.begin(), names.end(), same);
}

// TensorRT-LLM's inputs, and the fields that they are.
struct SamplingInput {
  const char* input;
  const char* field;
};
constexpr SamplingInput kSamplingInputs[] = {
    {"max_tokens", "max_tokens"},
    {"min_length", "min_tokens"},
    {"temperature", "temperature"},
    {"top_k", "top_k"},
    {"top_p", "top_p"},
    {"repetition_penalty", "repetition_penalty"},
    {"presence_penalty", "presence_penalty"},
    {"frequency_penalty", "frequency_penalty"},
    {"random_seed", "seed"},
    {"seed", "seed"},
    {"beam_width", "beam_width"},
};

void set_sampling_inputs(const RequestValues& values, EngineRequest& request) {
  for (const auto& [input, field] : kSamplingInputs) {
    if (const auto json = values.json(input)) set_field(request, field, *json);
  }
  SamplingParams& params = request.sampling_params;
  const auto append_words = [&](const char* input, std::vector<std::string>& texts) {
    for (std::string& word : values.texts(input)) {
      if (word.empty()) continue;  // how its clients say that there is none
      if (find_invalid_utf8(word) != std::string_view::npos)
        throw InvalidArgument(std::string(input) + " holds a text that is not valid UTF-8");
      texts.push_back(std::move(word));
    }
  };
  append_words("stop_words", params.stop);
  append_words("bad_words", params.bad_words);
  if (const auto end_id = values.json("end_id")) {
    if (end_id->starts_with('-')) {
      throw InvalidArgument("end_id must be at least 0, got " + excerpt(*end_id) +
                            "; leave it out, or set ignore_eos to go on after the end of the text");
    }
    EngineRequest other;
    set_field(other, "stop_token_ids", "[" + *end_id + "]");
    params.stop_token_ids.push_back(other.sampling_params.stop_token_ids.at(0));
  }
  values.json("pad_id");  // nothing is padded, but what it is must be right
}

// Complaints about it quote it.
std::string checked_utf8(const char* name, std::string text) {
  if (find_invalid_utf8(text) != std::string_view::npos)
    throw InvalidArgument(std::string(name) + " is not valid UTF-8");
  return text;
}

std::string utf8_text(const RequestValues& values, const char* name) {
  return checked_utf8(name, values.text(name));
}

struct LoraAction {
  const char* parameter;
  LoraControl::Action action;
};
constexpr LoraAction kLoraActions[] = {{"load_lora", LoraControl::Action::kLoad},
                                       {"unload_lora", LoraControl::Action::kUnload},
                                       {"list_loras", LoraControl::Action::kList}};

bool is_lora_action(const std::string& name) {
  return std::any_of(std::begin(kLoraActions), std::end(kLoraActions),
                     [&](const LoraAction& action) { return name == action.parameter; });
}

LoraControl read_lora_control(const IncomingRequest& incoming, const RequestValues& values,
                              const ModelSettings& model) {
  LoraControl control;
  std::string chosen;
  for (const auto& [parameter, action] : kLoraActions) {
    if (!values.flag(parameter).value_or(false)) continue;
    if (!chosen.empty()) throw InvalidArgument("give " + chosen + " or " + parameter + ", not both");
    chosen = parameter;
    control.action = action;
  }
  if (chosen.empty()) {
    if (!values.parameter("lora_path")) return control;
    throw InvalidArgument(
        "lora_path goes with load_lora; a request that generates has the lora_name of an adapter that is "
        "there");
  }
  if (!model.lora_control) {
    throw InvalidArgument(chosen +
                          " is true, but this model does not let requests change its adapters: its parameter "
                          "enable_lora_control would");
  }
  const bool has_path = control.action == LoraControl::Action::kLoad;
  const bool has_name = control.action != LoraControl::Action::kList;
  const auto check = [&](const std::string& name) {
    if (is_lora_action(name) || name == "request_id" || is_ignored(name, model)) return;
    if ((has_name && name == "lora_name") || (has_path && (name == "lora_path" || name == "load_inplace")))
      return;
    throw InvalidArgument(chosen + " is a request of its own; leave out '" + excerpt(name) + "'");
  };
  for (const InputTensor& tensor : incoming.inputs) check(tensor.name);
  for (const RequestParameter& parameter : incoming.parameters) check(parameter.name);
  control.lora_name = utf8_text(values, "lora_name");
  control.lora_path = checked_utf8("lora_path", values.parameter_text("lora_path"));
  control.load_inplace = values.flag("load_inplace").value_or(false);
  if (has_name && control.lora_name.empty())
    throw InvalidArgument(chosen + " needs lora_name: what requests call the adapter");
  if (has_path && control.lora_path.empty())
    throw InvalidArgument(chosen + " needs lora_path: the adapter's directory");
  return control;
}

// The name may stand in several places: clients repeat their fields. Of `request` is that of
// sampling_parameters; empty is none.
void set_lora_name(const RequestValues& values, EngineRequest& request) {
  const std::pair<const char*, std::string> places[] = {
      {"the input", values.input("lora_name") ? utf8_text(values, "lora_name") : ""},
      {"the parameter", checked_utf8("lora_name", values.parameter_text("lora_name"))},
      {"sampling_parameters", request.lora_name}};
  const char* chosen = nullptr;
  for (const auto& [place, name] : places) {
    if (name.empty()) continue;
    if (chosen && name != request.lora_name) {
      throw InvalidArgument("lora_name is '" + excerpt(request.lora_name) + "' in " + chosen + ", but '" +
                            excerpt(name) + "' in " + place + "; give it once");
    }
    chosen = place;
    request.lora_name = name;
  }
}

void set_sampling_fields(const IncomingRequest& incoming, const ModelSettings& model,
                         const RequestValues& values, EngineRequest& request, ChatRequest& chat) {
  for (const RequestParameter& parameter : incoming.parameters) {
    if (is_input_name(parameter.name) || is_lora_action(parameter.name) || is_ignored(parameter.name, model))
      continue;
    set_field(request, chat, parameter.name, to_json(parameter));
  }
  chat.messages.text = utf8_text(values, "messages");
  chat.tools.text = utf8_text(values, "tools");
  set_sampling_inputs(values, request);
  if (const std::string json = values.text("sampling_parameters"); !json.empty())
    set_fields(request, chat, json, "sampling_parameters");
  set_lora_name(values, request);
}

// An output is sent when its flag asks for it, or when the request lists it by name. A client that lists none
// is told by the server to have listed all, so a list of all says nothing.
void choose_outputs(const IncomingRequest& incoming, size_t num_outputs, const RequestValues& values,
                    ResponseOptions& options) {
  const auto& specs = output_specs();
  for (const std::string& output : incoming.outputs) {
    if (std::none_of(specs.begin(), specs.end(), [&](const auto& spec) { return output == spec.name; })) {
      throw InvalidArgument("output '" + excerpt(output) + "' is not one of this model's");
    }
  }
  const bool listed = !incoming.outputs.empty() && incoming.outputs.size() < num_outputs;
  const auto wanted = [&](const char* output, const char* flag) {
    if (flag && values.flag(flag).value_or(false)) return true;
    return listed &&
           std::find(incoming.outputs.begin(), incoming.outputs.end(), output) != incoming.outputs.end();
  };
  options.text_output = !listed || wanted("text_output", nullptr);
  options.output_ids = wanted("output_ids", "return_output_ids") || (!listed && values.input("input_ids"));
  options.finish_reason = wanted("finish_reason", "return_finish_reason");
  options.cumulative_logprob = wanted("cumulative_logprob", "return_cumulative_logprob");
  options.logprobs = wanted("logprobs", "return_logprobs");
  options.prompt_logprobs = wanted("prompt_logprobs", "return_prompt_logprobs");
  options.cum_log_probs = wanted("cum_log_probs", "return_log_probs");
  options.output_log_probs = wanted("output_log_probs", "return_log_probs");
  options.num_input_tokens = wanted("num_input_tokens", "return_num_input_tokens");
  options.num_output_tokens = wanted("num_output_tokens", "return_num_output_tokens");
  options.message = wanted("message", "return_message");
  options.usage = wanted("usage", "return_usage");
}

// Nothing is read for a conversation: its prompt is still to be rendered.
void read_prompt(const RequestValues& values, const ChatRequest& chat, EngineRequest& request) {
  const InputTensor* ids = values.input("input_ids");
  const bool has_text = values.input("text_input") || values.parameter("text_input");
  if (ids && has_text) throw InvalidArgument("give text_input or input_ids, not both");
  const bool has_messages =
      !chat.messages.text.empty() || values.input("messages") || values.parameter("messages");
  if (has_messages && (ids || has_text)) {
    throw InvalidArgument(std::string("give messages or ") + (ids ? "input_ids" : "text_input") +
                          ", not both");
  }
  if (has_messages && chat.messages.text.empty())
    throw InvalidArgument("messages is empty; give a JSON array of at least one message");
  if (has_messages) return;
  if (!ids && values.parameter("input_ids")) {
    throw InvalidArgument("input_ids must be an input: a parameter cannot hold an array");
  }
  if (!ids && !has_text) {
    throw InvalidArgument(
        "text_input is missing; give text_input (a string), input_ids (token ids) or messages (JSON)");
  }
  if (ids) {
    request.prompt_token_ids = values.ids("input_ids");
    return;
  }
  request.prompt = values.text("text_input");
  if (request.prompt.empty()) throw InvalidArgument("text_input is empty; give at least one token");
}

int64_t to_ms(uint64_t us) {
  return static_cast<int64_t>(std::min<uint64_t>(us / 1000 + (us % 1000 > 0), INT64_MAX));
}

}  // namespace

AdaptedRequest adapt_request(const IncomingRequest& incoming, const ModelSettings& model) {
  for (const InputTensor& tensor : incoming.inputs) {
    if (!is_input_name(tensor.name)) refuse_input(tensor, "is not one of this model's");
  }
  const RequestValues values(incoming);
  AdaptedRequest adapted;
  const bool has_name = values.input("request_id") || values.parameter("request_id");
  adapted.request_id = has_name ? values.text("request_id") : incoming.id;
  adapted.unique_id = has_name && !adapted.request_id.empty();
  adapted.cancel = values.flag("cancel").value_or(false);
  if (adapted.cancel) {
    if (adapted.request_id.empty())
      throw InvalidArgument("cancel needs request_id: the request to be cancelled");
    return adapted;
  }
  adapted.lora_control = read_lora_control(incoming, values, model);
  if (adapted.lora_control.action != LoraControl::Action::kNone) return adapted;

  ResponseOptions& response = adapted.response;
  response.batched = model.batched;
  response.stream = values.flag("stream").value_or(false);
  if (response.stream && !model.decoupled) {
    throw InvalidArgument(
        "stream is true, but this model sends one response to a request; use a model whose "
        "model_transaction_policy is decoupled");
  }
  // Like the vLLM backend: a text prompt comes first, but in a stream.
  const std::optional<bool> exclude = values.flag("exclude_input_in_output");
  const bool has_text = values.input("text_input") || values.parameter("text_input");
  response.prepend_input = !exclude.value_or(response.stream || !has_text);
  if (response.prepend_input && response.stream) {
    throw InvalidArgument(
        "exclude_input_in_output is false, but a stream cannot include the input; leave it out");
  }
  choose_outputs(incoming, model.num_outputs, values, response);

  set_sampling_fields(incoming, model, values, adapted.request, adapted.chat);
  read_prompt(values, adapted.chat, adapted.request);
  SamplingParams& params = adapted.request.sampling_params;
  params.output_kind = response.stream ? RequestOutputKind::kDelta : RequestOutputKind::kFinalOnly;
  // Asking for them back is asking for them.
  const bool needs_logprobs =
      response.logprobs || response.cumulative_logprob || response.cum_log_probs || response.output_log_probs;
  if (needs_logprobs && !params.wants_logprobs()) params.logprobs = 0;
  if (response.prompt_logprobs && !params.prompt_logprobs) params.prompt_logprobs = 0;
  if (response.message && !params.detokenize)
    throw InvalidArgument(
        "message is asked for, but detokenize is false: there is no text to read; leave it out");
  if (!response.text_output && !response.message && params.stop.empty()) params.detokenize = false;

  const uint64_t timeout_us = model.timeout_us(incoming.timeout_us);
  adapted.timeout_us = timeout_us;
  int64_t& deadline_ms = adapted.request.deadline_ms;
  if (timeout_us > 0) {
    // A shorter deadline of the request's own rules.
    if (deadline_ms > 0 && deadline_ms <= to_ms(timeout_us))
      adapted.timeout_us = 0;
    else
      deadline_ms = to_ms(timeout_us);
  }
  if (const int64_t queue_ms = to_ms(model.queue_timeout_us);
      queue_ms > 0 && (deadline_ms == 0 || queue_ms < deadline_ms)) {
    adapted.request.queue_timeout_ms = queue_ms;
  }
  return adapted;
}

}  // namespace quire::triton
