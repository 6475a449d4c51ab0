// EngineConfig.
#include <nanobind/stl/optional.h>

#include <utility>

#include "arguments.h"
#include "bindings.h"
#include "logits_processor_bindings.h"
#include "quire/engine.h"
#include "quire/engine_config.h"
#include "text.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace quire::bindings {
namespace {

// The engine's arena is known to Python only as a thing to pass on.
struct SharedArena {
  std::shared_ptr<KVArena> arena;
};

bool set_arena(EngineConfig& config, nb::handle value) {
  const SharedArena* shared = nullptr;
  if (!nb::try_cast<const SharedArena*>(value, shared)) return false;
  config.kv_arena = shared ? shared->arena : nullptr;
  return true;
}
nb::object get_arena(const EngineConfig& config) {
  return config.kv_arena ? nb::cast(SharedArena{config.kv_arena}) : nb::none();
}

nb::object get_processors(const EngineConfig& config) { return nb::cast(config.logits_processors); }

using C = EngineConfig;
constexpr Argument<C> kArguments[] = {
    argument<&C::dtype>("dtype"),
    argument<&C::max_model_len>("max_model_len"),
    argument<&C::skip_tokenizer_init>("skip_tokenizer_init"),
    argument<&C::device>("device"),
    argument<&C::num_threads>("num_threads"),
    argument<&C::tensor_parallel_size>("tensor_parallel_size"),
    argument<&C::block_size>("block_size"),
    argument<&C::kv_cache_memory_bytes>("kv_cache_memory_bytes"),
    argument<&C::num_gpu_blocks_override>("num_gpu_blocks_override"),
    argument<&C::enable_prefix_caching>("enable_prefix_caching"),
    argument<&C::max_num_seqs>("max_num_seqs"),
    argument<&C::max_num_batched_tokens>("max_num_batched_tokens"),
    argument<&C::enable_chunked_prefill>("enable_chunked_prefill"),
    argument<&C::long_prefill_token_threshold>("long_prefill_token_threshold"),
    argument<&C::scheduling_policy>("scheduling_policy"),
    argument<&C::async_scheduling>("async_scheduling"),
    argument<&C::max_queued_requests>("max_queued_requests"),
    argument<&C::seed>("seed"),
    argument<&C::enable_kv_cache_events>("enable_kv_cache_events"),
    {"kv_arena", "KVArena | None", "KVArena | None", set_arena, get_arena},
    argument<&C::max_num_partial_prefills>("max_num_partial_prefills"),
    argument<&C::max_long_partial_prefills>("max_long_partial_prefills"),
    argument<&C::scheduler_reserve_full_isl>("scheduler_reserve_full_isl"),
    argument<&C::watermark>("watermark"),
    argument<&C::max_logprobs>("max_logprobs"),
    argument<&C::max_logprob_token_ids>("max_logprob_token_ids"),
    argument<&C::max_logit_bias>("max_logit_bias"),
    argument<&C::max_stop_token_ids>("max_stop_token_ids"),
    argument<&C::max_stop_bytes>("max_stop_bytes"),
    argument<&C::max_bad_words_bytes>("max_bad_words_bytes"),
    argument<&C::max_extra_args_bytes>("max_extra_args_bytes"),
    {"logits_processors", "list[str]",
     "str | type[typing.Any] | collections.abc.Sequence[str | type[typing.Any]] | None",
     set_logits_processors, get_processors},
    argument<&C::think_start_token_ids>("think_start_token_ids"),
    argument<&C::think_end_token_ids>("think_end_token_ids"),
    argument<&C::max_answer_logprobs>("max_answer_logprobs"),
    argument<&C::max_queued_tokens>("max_queued_tokens"),
    argument<&C::max_waiting_requests>("max_waiting_requests"),
    argument<&C::flight_recorder_bytes>("flight_recorder_bytes"),
    argument<&C::flight_recorder_minutes>("flight_recorder_minutes"),
    argument<&C::flight_recorder_dir>("flight_recorder_dir"),
    argument<&C::flight_recorder_signal>("flight_recorder_signal"),
    argument<&C::exit_on_dead>("exit_on_dead"),
    argument<&C::load_format>("load_format"),
    argument<&C::gpu_memory_utilization>("gpu_memory_utilization"),
    argument<&C::gpu_memory_bytes>("gpu_memory_bytes"),
    argument<&C::enforce_eager>("enforce_eager"),
    argument<&C::prefix_caching_hash_seed>("prefix_caching_hash_seed"),
    argument<&C::kv_connector>("kv_connector"),
    argument<&C::kv_connector_config>("kv_connector_config"),
    argument<&C::max_structured_output_bytes>("max_structured_output_bytes"),
    argument<&C::structured_output_threads>("structured_output_threads"),
    argument<&C::structured_output_cache_bytes>("structured_output_cache_bytes"),
    argument<&C::enable_in_reasoning>("enable_in_reasoning"),
    argument<&C::num_jump_forward_tokens>("num_jump_forward_tokens"),
};
constexpr std::span<const Argument<C>> kAll(kArguments);

}  // namespace

void bind_config(nb::module_& m) {
  nb::class_<SharedArena>(m, "KVArena", "Memory for the KV caches of several engines of this process.")
      .def(
          "__init__", [](SharedArena* self, int64_t bytes) { new (self) SharedArena{make_kv_arena(bytes)}; },
          "bytes"_a);

  const std::string signature =
      "def __init__(self, model: str | os.PathLike[str], *" + parameter_list(kAll) + ") -> None";
  nb::class_<C> type(
      m, "EngineConfig",
      "Everything an engine is told at start; see quire/engine_config.h. None leaves a default.");
  type.def(
          "__init__",
          [](C* self, nb::handle model, const nb::kwargs& kwargs) {
            C config;
            const bool is_path = nb::hasattr(model, "__fspath__");
            config.model = text_of("model", is_path ? model.attr("__fspath__")() : nb::borrow(model));
            set_arguments(config, kAll, "EngineConfig", kwargs);
            config.validate();
            new (self) C(std::move(config));
          },
          "model"_a, "kwargs"_a, nb::sig(signature.c_str()))
      .def_ro("model", &C::model)
      .def(
          "is_in_processor", [](const C& config) { return is_in_logits_processor(config); },
          "Whether this thread is in a logits processor of an engine with this configuration.");
  def_attributes(type, kAll, /*settable=*/false);
}

}  // namespace quire::bindings
