// Engine, LLMEngine, OutputQueue.
#include "quire/engine.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>

#include <array>
#include <memory>
#include <thread>
#include <tuple>

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
void add_requests(Engine& engine, const nb::list& given, OutputQueue& queue, RequestOutputKind kind,
                  const std::string& name) {
  std::vector<EngineRequest> requests;
  std::vector<OutputCallback> callbacks;
  for (nb::handle request : given) {
    requests.push_back(taken(request));
    requests.back().sampling_params.output_kind = kind;
    callbacks.push_back(queue.callback(kind));
  }
  const ReleasedGil released;
  try {
    engine.add_requests(std::move(requests), std::move(callbacks));
  } catch (const InvalidRequest& error) {
    throw InvalidArgument(name + "[" + std::to_string(error.place) + "]: " + error.what());
  }
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

using CpuArray = nb::ndarray<nb::ro, nb::device::cpu, nb::c_contig>;

// The names of WeightTensor::dtype; empty for a type that weights do not have.
const char* dtype_of(const CpuArray& array) {
  using Code = nb::dlpack::dtype_code;
  const nb::dlpack::dtype dtype = array.dtype();
  const auto code = static_cast<Code>(dtype.code);
  if (dtype.lanes != 1) return "";
  if (code == Code::Float) return dtype.bits == 32 ? "float32" : dtype.bits == 16 ? "float16" : "";
  if (code == Code::Bfloat) return dtype.bits == 16 ? "bfloat16" : "";
  if (code == Code::UInt) return dtype.bits == 8 ? "uint8" : "";
  if (code != Code::Int) return "";
  return dtype.bits == 8 ? "int8" : dtype.bits == 32 ? "int32" : dtype.bits == 64 ? "int64" : "";
}

std::array<int64_t, 8> memory_as_array(const RankMemory& memory) {
  return {memory.weights,  memory.activations, memory.workspace, memory.batch,
          memory.adapters, memory.graphs,      memory.exchange,  memory.kv_cache};
}

UpdateWeightsOptions update_options(bool partial, UnfinishedRequests mode) {
  UpdateWeightsOptions options;
  options.partial = partial;
  options.unfinished = mode;
  return options;
}

// Arrays in the CPU's memory are read where they are; of others that are not dense a copy is made.
void update_weights(EngineBase& engine, const nb::list& named, bool partial, UnfinishedRequests mode) {
  std::vector<CpuArray> arrays;
  std::vector<WeightTensor> tensors;
  for (nb::handle item : named) {
    const auto name = nb::cast<std::string>(item[0]);
    const nb::object given = nb::borrow(item[1]);
    CpuArray array;
    if (!nb::try_cast(given, array)) {
      const std::string type = nb::cast<std::string>(nb::str(given.type().attr("__name__")));
      throw InvalidArgument("tensor '" + name +
                            "' must be an array in the CPU's memory that NumPy or DLPack can read, got " +
                            type + "; of a torch tensor .detach().cpu() may do");
    }
    WeightTensor& tensor = tensors.emplace_back();
    tensor.name = name;
    tensor.dtype = dtype_of(array);
    if (tensor.dtype.empty()) tensor.dtype = nb::cast<std::string>(given.attr("dtype").attr("__str__")());
    for (size_t i = 0; i < array.ndim(); ++i) tensor.shape.push_back(static_cast<int64_t>(array.shape(i)));
    tensor.data = array.data();
    arrays.push_back(std::move(array));
  }
  const ReleasedGil released;
  engine.update_weights(tensors, update_options(partial, mode));
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
      .def_ro("eos_token_ids", &ModelDescription::eos_token_ids)
      .def_prop_ro(
          "memory", [](const ModelDescription& model) { return memory_as_dict(model.memory); },
          nb::sig("def memory(self) -> dict[str, int]"),
          "Bytes that each rank has taken, or set aside; see quire/memory_plan.h.");
  using ModelState = std::tuple<std::string, std::string, std::string, int32_t, int32_t, std::vector<int32_t>,
                                std::array<int64_t, 8>>;
  def_value(
      model, {"architecture", "dtype", "backend", "vocab_size", "max_model_len", "eos_token_ids", "memory"},
      +[](const ModelDescription& self) {
        return ModelState(self.architecture, self.dtype, self.backend, self.vocab_size, self.max_model_len,
                          self.eos_token_ids, memory_as_array(self.memory));
      },
      +[](const ModelState& state) {
        ModelDescription self;
        std::array<int64_t, 8> memory;
        std::tie(self.architecture, self.dtype, self.backend, self.vocab_size, self.max_model_len,
                 self.eos_token_ids, memory) = state;
        self.memory = {memory[0], memory[1], memory[2], memory[3],
                       memory[4], memory[5], memory[6], memory[7]};
        return self;
      });

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
      .def_ro("num_expert_tokens", &EngineStats::num_expert_tokens)
      .def_ro("expert_load_imbalance", &EngineStats::expert_load_imbalance)
      .def_ro("num_scheduled_tokens", &EngineStats::num_scheduled_tokens)
      .def_ro("prefix_cache_queries", &EngineStats::prefix_cache_queries)
      .def_ro("prefix_cache_hits", &EngineStats::prefix_cache_hits)
      .def_ro("external_prefix_cache_hits", &EngineStats::external_prefix_cache_hits)
      .def_ro("num_generation_tokens", &EngineStats::num_generation_tokens)
      .def_ro("num_spec_tokens", &EngineStats::num_spec_tokens)
      .def_ro("num_accepted_spec_tokens", &EngineStats::num_accepted_spec_tokens)
      .def_ro("num_unknown_aborts", &EngineStats::num_unknown_aborts)
      .def_ro("num_expired_reqs", &EngineStats::num_expired_reqs);
  def_plain_value<
      &EngineStats::num_steps, &EngineStats::num_running_reqs, &EngineStats::num_waiting_reqs,
      &EngineStats::num_waiting_tokens, &EngineStats::num_free_blocks, &EngineStats::num_total_blocks,
      &EngineStats::kv_cache_usage, &EngineStats::kv_cache_waste, &EngineStats::num_preemptions,
      &EngineStats::num_full_graph_steps, &EngineStats::num_piecewise_graph_steps,
      &EngineStats::num_eager_steps, &EngineStats::num_expert_tokens, &EngineStats::expert_load_imbalance,
      &EngineStats::num_scheduled_tokens, &EngineStats::prefix_cache_queries, &EngineStats::prefix_cache_hits,
      &EngineStats::external_prefix_cache_hits, &EngineStats::num_generation_tokens,
      &EngineStats::num_spec_tokens, &EngineStats::num_accepted_spec_tokens, &EngineStats::num_unknown_aborts,
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
                                              "num_expert_tokens",
                                              "expert_load_imbalance",
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

  nb::enum_<UnfinishedRequests>(m, "UnfinishedRequests",
                                "What becomes of unfinished requests when an engine sleeps or is changed.")
      .value("REFUSE", UnfinishedRequests::kRefuse, "ValueError while there is one.")
      .value("WAIT", UnfinishedRequests::kWait, "No new ones are accepted; the others finish first.")
      .value("ABORT", UnfinishedRequests::kAbort, "They end with finish_reason \"abort\".")
      .value("KEEP", UnfinishedRequests::kKeep, "They go on with new weights, computed anew.");

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
      .def(
          "expert_loads",
          [](const EngineBase& engine) {
            std::vector<std::pair<std::string, std::vector<uint64_t>>> loads;
            for (ExpertLoad& load : engine.expert_loads())
              loads.emplace_back(std::move(load.layer), std::move(load.num_tokens));
            return loads;
          },
          ReleaseGil(), "The tokens of each expert, by the name of its layer.")
      .def_prop_ro("dead_error", &EngineBase::dead_error, ReleaseGil())
      .def("reset_prefix_cache", &EngineBase::reset_prefix_cache, ReleaseGil(),
           "Forgets cached prefixes. False, and nothing done, while a request is unfinished.")
      .def_prop_ro("seconds_since_progress", &EngineBase::seconds_since_progress, ReleaseGil())
      .def(
          "check_health",
          [](const EngineBase& engine, int64_t timeout_ms) {
            engine.check_health(std::chrono::milliseconds(timeout_ms));
          },
          "timeout_ms"_a = 5000, ReleaseGil())
      .def("sleep", &EngineBase::sleep, "level"_a = 1, "mode"_a = UnfinishedRequests::kRefuse, ReleaseGil())
      .def("wake_up", &EngineBase::wake_up, "tags"_a = std::vector<std::string>{}, ReleaseGil())
      .def_prop_ro("is_sleeping", &EngineBase::is_sleeping, ReleaseGil())
      .def(
          "update_weights_from_directory",
          [](EngineBase& engine, const std::string& directory, bool partial, UnfinishedRequests mode) {
            engine.update_weights(directory, update_options(partial, mode));
          },
          "directory"_a, "partial"_a = false, "mode"_a = UnfinishedRequests::kRefuse, ReleaseGil())
      .def("update_weights_from_tensors", &update_weights, "named_tensors"_a, "partial"_a, "mode"_a,
           nb::sig("def update_weights_from_tensors(self, named_tensors: list[tuple[str, object]], "
                   "partial: bool, mode: UnfinishedRequests) -> None"))
      .def(
          "add_lora",
          [](EngineBase& engine, std::string name, int32_t int_id, std::string path, bool load_inplace) {
            return engine.add_lora({std::move(name), int_id, std::move(path), load_inplace});
          },
          "lora_name"_a, "lora_int_id"_a, "lora_path"_a, "load_inplace"_a, ReleaseGil())
      .def("remove_lora", &EngineBase::remove_lora, "lora_name"_a, ReleaseGil())
      .def("pin_lora", &EngineBase::pin_lora, "lora_name"_a, ReleaseGil())
      .def(
          "list_loras",
          [](const EngineBase& engine) {
            std::vector<std::tuple<std::string, int32_t, std::string, int32_t, bool, bool, int64_t>> all;
            for (LoraInfo& info : engine.list_loras()) {
              all.emplace_back(std::move(info.lora_name), info.lora_int_id, std::move(info.lora_path),
                               info.rank, info.is_loaded, info.is_pinned, info.num_requests);
            }
            return all;
          },
          ReleaseGil(), "The fields of LoraInfo, of each adapter.")
      .def("pause", &EngineBase::pause, "mode"_a = PauseMode::kKeep, ReleaseGil())
      .def("resume", &EngineBase::resume, ReleaseGil())
      .def("take_kv_events", &EngineBase::take_kv_events, ReleaseGil())
      .def("dump_flight_recorder", &EngineBase::dump_flight_recorder, "path"_a, ReleaseGil())
      .def("shutdown", &EngineBase::shutdown, ReleaseGil(),
           "Ends the engine: waits for the step that runs, drops unfinished requests, refuses later ones.");

  nb::class_<Engine, EngineBase>(m, "Engine", "The engine on threads of its own. Thread-safe.")
      .def(nb::new_([](const EngineConfig& config) { return make_engine<Engine>(config); }), "config"_a)
      .def("add_requests", add_requests, "requests"_a, "queue"_a, "output_kind"_a, "name"_a = "requests",
           nb::sig("def add_requests(self, requests: list[EngineRequest], queue: OutputQueue, "
                   "output_kind: RequestOutputKind, name: str = 'requests') -> None"),
           "Queues requests whose outputs, of that kind, go to `queue`: all of them, or none and ValueError, "
           "which says which one of `name` is wrong. Uses them up.")
      .def("abort_request", &Engine::abort_request, "request_id"_a, ReleaseGil())
      .def("abort_all_requests", &Engine::abort_all_requests, ReleaseGil())
      .def(
          "drain",
          [](Engine& self, int64_t timeout_ms) { return self.drain(std::chrono::milliseconds(timeout_ms)); },
          "timeout_ms"_a, ReleaseGil(), "Accepts no more requests; waits until all are finished.")
      .def_prop_ro("is_draining", &Engine::is_draining);

  nb::class_<OutputSelector>(m, "OutputSelector",
                             "Tells an event loop which of many queues have outputs, once for each step.")
      .def(nb::init<Engine&>(), "engine"_a)
      .def("fileno", &OutputSelector::fileno, "Readable while take() would give something.")
      .def("open", &OutputSelector::open, "key"_a, "A queue that arrivals are told of under this key.")
      .def("take", &OutputSelector::take,
           "The keys of the queues that something arrived in, since all that was there had been taken.");

  nb::class_<LLMEngine, EngineBase>(m, "LLMEngine", "The engine without threads: it computes inside step().")
      .def(nb::new_([](const EngineConfig& config) { return make_engine<LLMEngine>(config); }), "config"_a)
      .def("add_request", add_request, "request"_a, "Uses the request up.")
      .def("abort_request", &LLMEngine::abort_request, "request_id"_a, ReleaseGil())
      .def("has_unfinished_requests", &LLMEngine::has_unfinished_requests, ReleaseGil())
      .def("step", &LLMEngine::step, ReleaseGil(), "One step. What is new or finished, perhaps nothing.");
}

}  // namespace quire::bindings
