// Engine, LLMEngine, OutputQueue.
#include "quire/engine.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/variant.h>

#include <memory>
#include <thread>

#include "arguments.h"
#include "bindings.h"
#include "logits_processor_bindings.h"
#include "text.h"
#include "values.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace quire::bindings {
namespace {

constexpr auto kRequestFields = arguments_of_table<kEngineRequestFields>();
constexpr std::span<const Argument<EngineRequest>> kRequestArguments(kRequestFields);

// A request is used up: what it holds may be long, and goes to the engine as it is.
EngineRequest taken(nb::handle request) { return std::move(nb::cast<EngineRequest&>(request)); }

// The requests' parameters are one copy already, so what the queue is for is written there.
void add_requests(Engine& engine, const nb::list& given, OutputQueue& queue, RequestOutputKind kind) {
  std::vector<EngineRequest> requests;
  std::vector<OutputCallback> callbacks;
  for (nb::handle request : given) {
    requests.push_back(taken(request));
    requests.back().sampling_params.output_kind = kind;
    callbacks.push_back(queue.callback(kind));
  }
  const ReleasedGil released;
  engine.add_requests(std::move(requests), std::move(callbacks));
}

// An engine, ended with its last reference. Its threads may be about to enter Python, so whoever waits for
// them is not in it; and the thread that a logits processor runs on cannot wait for itself.
template <typename E>
std::shared_ptr<E> make_engine(const EngineConfig& config) {
  const ReleasedGil released;
  return {new E(config), [](E* engine) {
            if (is_in_logits_processor()) {
              std::thread([engine] { delete engine; }).detach();
              return;
            }
            const ReleasedGil released;
            delete engine;
          }};
}

std::string add_request(LLMEngine& engine, nb::handle_t<EngineRequest> given) {
  EngineRequest request = taken(given);
  const ReleasedGil released;
  return engine.add_request(std::move(request));
}

}  // namespace

void bind_engine(nb::module_& m) {
  const std::string signature =
      "def __init__(self, request_id: str, prompt: str | collections.abc.Sequence[int], "
      "sampling_params: SamplingParams, *" +
      parameter_list(kRequestArguments) + ") -> None";
  nb::class_<EngineRequest>(
      m, "EngineRequest",
      "A prompt, text or token ids, and how to continue it. An engine that it is given to uses it up.")
      .def(
          "__init__",
          [](EngineRequest* self, std::string request_id,
             std::variant<std::string, std::vector<int32_t>> prompt, const SamplingParams& sampling_params,
             const nb::kwargs& kwargs) {
            EngineRequest request;
            request.request_id = std::move(request_id);
            if (auto* text = std::get_if<std::string>(&prompt)) request.prompt = std::move(*text);
            if (auto* ids = std::get_if<std::vector<int32_t>>(&prompt))
              request.prompt_token_ids = std::move(*ids);
            request.sampling_params = sampling_params;
            set_arguments(request, kRequestArguments, "EngineRequest", kwargs);
            new (self) EngineRequest(std::move(request));
          },
          "request_id"_a, "prompt"_a, "sampling_params"_a, "kwargs"_a, nb::sig(signature.c_str()))
      .def_ro("request_id", &EngineRequest::request_id);

  nb::class_<ModelDescription> model(m, "ModelDescription", "What was loaded.");
  model.def_ro("architecture", &ModelDescription::architecture)
      .def_ro("dtype", &ModelDescription::dtype)
      .def_ro("backend", &ModelDescription::backend)
      .def_ro("vocab_size", &ModelDescription::vocab_size)
      .def_ro("max_model_len", &ModelDescription::max_model_len)
      .def_ro("eos_token_ids", &ModelDescription::eos_token_ids);
  def_plain_value<&ModelDescription::architecture, &ModelDescription::dtype, &ModelDescription::backend,
                  &ModelDescription::vocab_size, &ModelDescription::max_model_len,
                  &ModelDescription::eos_token_ids>(
      model, {"architecture", "dtype", "backend", "vocab_size", "max_model_len", "eos_token_ids"});

  nb::class_<EngineStats> stats(m, "EngineStats",
                                "Counters since the start, and the state after the last step.");
  stats.def_ro("num_steps", &EngineStats::num_steps)
      .def_ro("num_running_reqs", &EngineStats::num_running_reqs)
      .def_ro("num_waiting_reqs", &EngineStats::num_waiting_reqs)
      .def_ro("num_waiting_tokens", &EngineStats::num_waiting_tokens)
      .def_ro("num_free_blocks", &EngineStats::num_free_blocks)
      .def_ro("num_total_blocks", &EngineStats::num_total_blocks)
      .def_ro("kv_cache_usage", &EngineStats::kv_cache_usage)
      .def_ro("kv_cache_waste", &EngineStats::kv_cache_waste)
      .def_ro("num_preemptions", &EngineStats::num_preemptions)
      .def_ro("num_full_graph_steps", &EngineStats::num_full_graph_steps)
      .def_ro("num_piecewise_graph_steps", &EngineStats::num_piecewise_graph_steps)
      .def_ro("num_eager_steps", &EngineStats::num_eager_steps)
      .def_ro("num_scheduled_tokens", &EngineStats::num_scheduled_tokens)
      .def_ro("prefix_cache_queries", &EngineStats::prefix_cache_queries)
      .def_ro("prefix_cache_hits", &EngineStats::prefix_cache_hits)
      .def_ro("external_prefix_cache_hits", &EngineStats::external_prefix_cache_hits)
      .def_ro("num_generation_tokens", &EngineStats::num_generation_tokens)
      .def_ro("num_spec_tokens", &EngineStats::num_spec_tokens)
      .def_ro("num_accepted_spec_tokens", &EngineStats::num_accepted_spec_tokens)
      .def_ro("num_unknown_aborts", &EngineStats::num_unknown_aborts)
      .def_ro("num_expired_reqs", &EngineStats::num_expired_reqs);
  def_plain_value<&EngineStats::num_steps, &EngineStats::num_running_reqs, &EngineStats::num_waiting_reqs,
                  &EngineStats::num_waiting_tokens, &EngineStats::num_free_blocks,
                  &EngineStats::num_total_blocks, &EngineStats::kv_cache_usage, &EngineStats::kv_cache_waste,
                  &EngineStats::num_preemptions, &EngineStats::num_full_graph_steps,
                  &EngineStats::num_piecewise_graph_steps, &EngineStats::num_eager_steps,
                  &EngineStats::num_scheduled_tokens, &EngineStats::prefix_cache_queries,
                  &EngineStats::prefix_cache_hits, &EngineStats::external_prefix_cache_hits,
                  &EngineStats::num_generation_tokens, &EngineStats::num_spec_tokens,
                  &EngineStats::num_accepted_spec_tokens, &EngineStats::num_unknown_aborts,
                  &EngineStats::num_expired_reqs>(stats, {"num_steps",
                                                          "num_running_reqs",
                                                          "num_waiting_reqs",
                                                          "num_waiting_tokens",
                                                          "num_free_blocks",
                                                          "num_total_blocks",
                                                          "kv_cache_usage",
                                                          "kv_cache_waste",
                                                          "num_preemptions",
                                                          "num_full_graph_steps",
                                                          "num_piecewise_graph_steps",
                                                          "num_eager_steps",
                                                          "num_scheduled_tokens",
                                                          "prefix_cache_queries",
                                                          "prefix_cache_hits",
                                                          "external_prefix_cache_hits",
                                                          "num_generation_tokens",
                                                          "num_spec_tokens",
                                                          "num_accepted_spec_tokens",
                                                          "num_unknown_aborts",
                                                          "num_expired_reqs"});

  nb::enum_<PauseMode>(m, "PauseMode", "How an engine pauses.")
      .value("KEEP", PauseMode::kKeep, "Nothing is computed until it resumes.")
      .value("WAIT", PauseMode::kWait, "Running requests go on, waiting ones do not begin.");

  nb::class_<OutputQueue>(m, "OutputQueue",
                          "Collects outputs for a consumer that polls; untaken deltas are merged.")
      .def(nb::init<>())
      .def(
          "take",
          [](OutputQueue& self, int64_t timeout_ms) {
            return self.take(std::chrono::milliseconds(timeout_ms));
          },
          "timeout_ms"_a, ReleaseGil(),
          "Everything that waits, oldest first; waits up to timeout_ms for the first.");

  nb::class_<EngineBase>(m, "EngineBase", "What both engines offer besides requests.")
      .def_prop_ro("model", &EngineBase::model)
      .def_prop_ro("tokenizer",
                   [](const EngineBase& engine) {
                     auto tokenizer = engine.tokenizer();
                     return tokenizer ? std::optional(TokenizerHandle{std::move(tokenizer)}) : std::nullopt;
                   })
      .def("apply_chat_template",
           nb::overload_cast<const std::string&, const std::string&, const std::string&>(
               &EngineBase::apply_chat_template, nb::const_),
           "messages_json"_a, "options_json"_a = "{}", "chat_template"_a = "", ReleaseGil())
      .def("stats", &EngineBase::stats, ReleaseGil())
      .def_prop_ro("dead_error", &EngineBase::dead_error, ReleaseGil())
      .def("reset_prefix_cache", &EngineBase::reset_prefix_cache, ReleaseGil(),
           "Forgets cached prefixes. False, and nothing done, while a request is unfinished.")
      .def("pause", &EngineBase::pause, "mode"_a = PauseMode::kKeep, ReleaseGil())
      .def("resume", &EngineBase::resume, ReleaseGil())
      .def("take_kv_events", &EngineBase::take_kv_events, ReleaseGil())
      .def("dump_flight_recorder", &EngineBase::dump_flight_recorder, "path"_a, ReleaseGil())
      .def("shutdown", &EngineBase::shutdown, ReleaseGil(),
           "Ends the engine: waits for the step that runs, drops unfinished requests, refuses later ones.");

  nb::class_<Engine, EngineBase>(m, "Engine", "The engine on threads of its own. Thread-safe.")
      .def(nb::new_([](const EngineConfig& config) { return make_engine<Engine>(config); }), "config"_a)
      .def("add_requests", add_requests, "requests"_a, "queue"_a, "output_kind"_a,
           nb::sig("def add_requests(self, requests: list[EngineRequest], queue: OutputQueue, "
                   "output_kind: RequestOutputKind) -> None"),
           "Queues requests whose outputs, of that kind, go to `queue`: all of them, or none and ValueError. "
           "Uses them up.")
      .def("abort_request", &Engine::abort_request, "request_id"_a, ReleaseGil())
      .def(
          "drain",
          [](Engine& self, int64_t timeout_ms) { return self.drain(std::chrono::milliseconds(timeout_ms)); },
          "timeout_ms"_a, ReleaseGil(), "Accepts no more requests; waits until all are finished.");

  nb::class_<LLMEngine, EngineBase>(m, "LLMEngine", "The engine without threads: it computes inside step().")
      .def(nb::new_([](const EngineConfig& config) { return make_engine<LLMEngine>(config); }), "config"_a)
      .def("add_request", add_request, "request"_a, "Uses the request up.")
      .def("abort_request", &LLMEngine::abort_request, "request_id"_a, ReleaseGil())
      .def("has_unfinished_requests", &LLMEngine::has_unfinished_requests, ReleaseGil())
      .def("step", &LLMEngine::step, ReleaseGil(), "One step. What is new or finished, perhaps nothing.");
}

}  // namespace quire::bindings
