#include "quire/fields.h"

#include <algorithm>

#include "engine/field_value.h"
#include "util/str.h"

namespace quire {
namespace {

template <typename Target>
struct Field {
  const char* name;
  void (*set)(Target& target, const FieldValue& value);
};

template <auto member>
void set_config(EngineConfig& config, const FieldValue& value) {
  value.read(config.*member);
}
template <auto member>
void set_request(EngineRequest& request, const FieldValue& value) {
  value.read(request.*member);
}
template <auto member>
void set_sampling(EngineRequest& request, const FieldValue& value) {
  value.read(request.sampling_params.*member);
}

// The chat API's `logprobs` is a bool: the chosen token's alone.
void set_logprobs(EngineRequest& request, const FieldValue& value) {
  bool wanted = false;
  if (!value.read_if_boolean(wanted)) return value.read(request.sampling_params.logprobs);
  request.sampling_params.logprobs = wanted ? std::optional<int32_t>(0) : std::nullopt;
}

#define QUIRE_FIELD(set, type, name) {#name, set<&type::name>}

constexpr Field<EngineRequest> kRequestFields[] = {
    QUIRE_FIELD(set_sampling, SamplingParams, temperature),
    QUIRE_FIELD(set_sampling, SamplingParams, top_k),
    QUIRE_FIELD(set_sampling, SamplingParams, top_p),
    QUIRE_FIELD(set_sampling, SamplingParams, min_p),
    QUIRE_FIELD(set_sampling, SamplingParams, presence_penalty),
    QUIRE_FIELD(set_sampling, SamplingParams, frequency_penalty),
    QUIRE_FIELD(set_sampling, SamplingParams, repetition_penalty),
    QUIRE_FIELD(set_sampling, SamplingParams, logit_bias),
    QUIRE_FIELD(set_sampling, SamplingParams, seed),
    QUIRE_FIELD(set_sampling, SamplingParams, max_tokens),
    QUIRE_FIELD(set_sampling, SamplingParams, min_tokens),
    QUIRE_FIELD(set_sampling, SamplingParams, stop),
    QUIRE_FIELD(set_sampling, SamplingParams, stop_token_ids),
    QUIRE_FIELD(set_sampling, SamplingParams, ignore_eos),
    QUIRE_FIELD(set_sampling, SamplingParams, include_stop_str_in_output),
    QUIRE_FIELD(set_sampling, SamplingParams, n),
    {"logprobs", set_logprobs},
    QUIRE_FIELD(set_sampling, SamplingParams, detokenize),
    QUIRE_FIELD(set_sampling, SamplingParams, skip_special_tokens),
    QUIRE_FIELD(set_request, EngineRequest, priority),
    QUIRE_FIELD(set_request, EngineRequest, deadline_ms),
    QUIRE_FIELD(set_request, EngineRequest, user),
    QUIRE_FIELD(set_request, EngineRequest, cache_salt),
    QUIRE_FIELD(set_request, EngineRequest, add_special_tokens),
};

constexpr Field<EngineConfig> kConfigFields[] = {
    QUIRE_FIELD(set_config, EngineConfig, model),
    QUIRE_FIELD(set_config, EngineConfig, dtype),
    QUIRE_FIELD(set_config, EngineConfig, load_format),
    QUIRE_FIELD(set_config, EngineConfig, max_model_len),
    QUIRE_FIELD(set_config, EngineConfig, skip_tokenizer_init),
    QUIRE_FIELD(set_config, EngineConfig, device),
    QUIRE_FIELD(set_config, EngineConfig, num_threads),
    QUIRE_FIELD(set_config, EngineConfig, tensor_parallel_size),
    QUIRE_FIELD(set_config, EngineConfig, gpu_memory_utilization),
    QUIRE_FIELD(set_config, EngineConfig, gpu_memory_bytes),
    QUIRE_FIELD(set_config, EngineConfig, enforce_eager),
    QUIRE_FIELD(set_config, EngineConfig, block_size),
    QUIRE_FIELD(set_config, EngineConfig, kv_cache_memory_bytes),
    QUIRE_FIELD(set_config, EngineConfig, num_gpu_blocks_override),
    QUIRE_FIELD(set_config, EngineConfig, enable_prefix_caching),
    QUIRE_FIELD(set_config, EngineConfig, prefix_caching_hash_seed),
    QUIRE_FIELD(set_config, EngineConfig, enable_kv_cache_events),
    QUIRE_FIELD(set_config, EngineConfig, max_num_seqs),
    QUIRE_FIELD(set_config, EngineConfig, max_num_batched_tokens),
    QUIRE_FIELD(set_config, EngineConfig, enable_chunked_prefill),
    QUIRE_FIELD(set_config, EngineConfig, long_prefill_token_threshold),
    QUIRE_FIELD(set_config, EngineConfig, max_num_partial_prefills),
    QUIRE_FIELD(set_config, EngineConfig, max_long_partial_prefills),
    QUIRE_FIELD(set_config, EngineConfig, scheduling_policy),
    QUIRE_FIELD(set_config, EngineConfig, async_scheduling),
    QUIRE_FIELD(set_config, EngineConfig, scheduler_reserve_full_isl),
    QUIRE_FIELD(set_config, EngineConfig, watermark),
    QUIRE_FIELD(set_config, EngineConfig, max_logprobs),
    QUIRE_FIELD(set_config, EngineConfig, max_logit_bias),
    QUIRE_FIELD(set_config, EngineConfig, max_stop_token_ids),
    QUIRE_FIELD(set_config, EngineConfig, max_stop_bytes),
    QUIRE_FIELD(set_config, EngineConfig, max_answer_logprobs),
    QUIRE_FIELD(set_config, EngineConfig, max_queued_requests),
    QUIRE_FIELD(set_config, EngineConfig, max_waiting_requests),
    QUIRE_FIELD(set_config, EngineConfig, max_queued_tokens),
    QUIRE_FIELD(set_config, EngineConfig, flight_recorder_bytes),
    QUIRE_FIELD(set_config, EngineConfig, flight_recorder_minutes),
    QUIRE_FIELD(set_config, EngineConfig, flight_recorder_dir),
    QUIRE_FIELD(set_config, EngineConfig, flight_recorder_signal),
    QUIRE_FIELD(set_config, EngineConfig, exit_on_dead),
    QUIRE_FIELD(set_config, EngineConfig, seed),
};
#undef QUIRE_FIELD

// vLLM's fields that clients write out of habit; anything but these values would change the result.
struct NeutralField {
  const char* name;
  const char* json;
};
constexpr NeutralField kNeutralFields[] = {
    {"best_of", "1"},          {"use_beam_search", "false"},
    {"length_penalty", "1.0"}, {"early_stopping", "false"},
    {"prompt_logprobs", "0"},  {"spaces_between_special_tokens", "true"},
};

template <typename Target, size_t count>
const Field<Target>* find_field(const Field<Target> (&fields)[count], const std::string& name) {
  const auto found =
      std::find_if(fields, fields + count, [&](const auto& field) { return name == field.name; });
  return found == fields + count ? nullptr : found;
}

template <typename Target, size_t count>
std::vector<std::string> names_of(const Field<Target> (&fields)[count]) {
  std::vector<std::string> names;
  for (const auto& field : fields) names.emplace_back(field.name);
  return names;
}

template <typename Target, size_t count>
[[noreturn]] void fail_unknown(const Field<Target> (&fields)[count], const std::string& name) {
  std::string known;
  for (const auto& field : fields) known += (known.empty() ? "" : ", ") + std::string(field.name);
  throw InvalidArgument(str("'", name.substr(0, 100), "' is not a field we know; there are ", known));
}

void set_json_field(EngineRequest& request, const std::string& name, const Json& value) {
  if (const auto* field = find_field(kRequestFields, name)) {
    if (!value.is_null()) field->set(request, FieldValue(value, name));
    return;
  }
  for (const NeutralField& neutral : kNeutralFields) {
    if (name != neutral.name) continue;
    Json parsed;
    if (value.is_string()) parsed = try_parse_json(value.get_ref<const std::string&>());
    const Json& given = value.is_string() ? parsed : value;
    if (value.is_null() || given == Json::parse(neutral.json)) return;
    throw InvalidArgument(str(name, " is not supported; leave it out, or give ", neutral.json));
  }
  fail_unknown(kRequestFields, name);
}

}  // namespace

void set_field(EngineRequest& request, const std::string& name, const std::string& json) {
  set_json_field(request, name, parse_json(json, name));
}

void set_fields(EngineRequest& request, const std::string& json, std::string_view where) {
  const Json object = parse_json(json, std::string(where));
  if (!object.is_object()) throw InvalidArgument(str(where, " must be a JSON object"));
  for (const auto& [name, value] : object.items()) set_json_field(request, name, value);
}

std::vector<std::string> request_field_names() { return names_of(kRequestFields); }

void set_field(EngineConfig& config, const std::string& name, const std::string& text) {
  const auto* field = find_field(kConfigFields, name);
  if (!field) fail_unknown(kConfigFields, name);
  const Json value = text;
  field->set(config, FieldValue(value, name));
}

std::vector<std::string> engine_config_field_names() { return names_of(kConfigFields); }

}  // namespace quire
