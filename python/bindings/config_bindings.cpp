// EngineConfig.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <array>
#include <string_view>
#include <tuple>
#include <utility>

#include "arguments.h"
#include "bindings.h"
#include "logits_processor_bindings.h"
#include "metrics_bindings.h"
#include "quire/build_info.h"
#include "quire/engine.h"
#include "quire/engine_config.h"
#include "quire/generation_config.h"
#include "quire/model_directory.h"
#include "quire/model_registry.h"
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

// vLLM has further words for two of them.
bool set_dtype(EngineConfig& config, nb::handle value) {
  if (!from_python(value, config.dtype)) return false;
  if (config.dtype == "half") config.dtype = "float16";
  if (config.dtype == "float") config.dtype = "float32";
  return true;
}

bool set_plugins(EngineConfig& config, nb::handle value) {
  config.plugins =
      nb::cast<std::vector<std::string>>(nb::module_::import_("quire.plugins").attr("library_paths")(value));
  return true;
}

nb::dict build_info_as_dict() {
  const BuildInfo info = build_info();
  nb::dict described;
  described["compiler"] = info.compiler;
  described["build_type"] = info.build_type;
  described["has_cuda"] = info.has_cuda;
  described["cuda_architectures"] = info.cuda_architectures;
  described["num_cuda_devices"] = info.num_cuda_devices;
  described["instruction_sets"] = info.instruction_sets;
  described["instruction_set"] = info.instruction_set;
  return described;
}

nb::object hub_name(const std::string& text) {
  const auto name = parse_hub_name(text);
  return name ? nb::object(nb::make_tuple(name->name, name->revision, name->quantization)) : nb::none();
}

nb::tuple cached_model(const std::string& name, const std::string& revision, const std::string& quantization,
                       const std::string& files, const std::string& download_dir) {
  const HubFiles needed = files == "tokenizer" ? HubFiles::kTokenizer
                          : files == "config"  ? HubFiles::kConfig
                                               : HubFiles::kModel;
  const CachedModel found = find_cached_model({name, revision, quantization}, needed, download_dir);
  return nb::make_tuple(found.directory, found.missing);
}

using C = EngineConfig;
// Of the table, but the model, its first field, which may be a path and comes without its name; and what
// has no text.
constexpr auto make_arguments() {
  constexpr auto of_table = arguments_of_table<kEngineConfigFields>();
  std::array<Argument<C>, of_table.size() + 1> arguments{};
  for (size_t i = 1; i < of_table.size(); ++i) {
    Argument<C>& argument = arguments[i - 1] = of_table[i];
    if (std::string_view(argument.name) == "dtype") argument.set = set_dtype;
    if (std::string_view(argument.name) == "plugins") {
      argument.accepts = "str | os.PathLike[str] | collections.abc.Sequence[str | os.PathLike[str]] | None";
      argument.set = set_plugins;
    }
    if (std::string_view(argument.name) != "logits_processors") continue;
    argument.accepts = "str | type[typing.Any] | collections.abc.Sequence[str | type[typing.Any]] | None";
    argument.set = set_logits_processors;
  }
  arguments[of_table.size() - 1] = {"kv_arena",
                                    "KVArena | None",
                                    "KVArena | None",
                                    set_arena,
                                    get_arena,
                                    "",
                                    "memory shared with other engines, instead of kv_cache_memory_bytes"};
  arguments.back() = {"metric_sink",
                      "PrometheusMetrics | None",
                      "PrometheusMetrics | None",
                      set_metric_sink,
                      get_metric_sink,
                      "",
                      "told once a step what the engine measures; of one engine at a time"};
  return arguments;
}
static_assert(std::string_view(std::get<0>(kEngineConfigFields).name) == "model");
constexpr auto kArguments = make_arguments();
constexpr std::span<const Argument<C>> kAll(kArguments);

}  // namespace

void bind_config(nb::module_& m) {
  nb::class_<SharedArena>(m, "KVArena", "Memory for the KV caches of several engines of this process.")
      .def(
          "__init__", [](SharedArena* self, int64_t bytes) { new (self) SharedArena{make_kv_arena(bytes)}; },
          "bytes"_a);

  const std::string signature =
      "def __init__(self, model: str | os.PathLike[str], *" + parameter_list(kAll) + ") -> None";
  nb::class_<C> type(m, "EngineConfig", "Everything an engine is told at start. None leaves a default.");
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
      .def_ro("model", &C::model, std::get<0>(kEngineConfigFields).doc)
      .def(
          "is_in_processor", [](const C& config) { return is_in_logits_processor(config); },
          "Whether this thread is in a logits processor of an engine with this configuration.");
  def_attributes(type, kAll, /*settable=*/false);
  m.def("parse_hub_name", hub_name, "text"_a,
        nb::sig("def parse_hub_name(text: str) -> tuple[str, str, str] | None"),
        "The name, the revision and the quantization, perhaps empty, of \"org/name:quantization@revision\"; "
        "None for what can be no such "
        "name.");
  m.def("find_cached_model", cached_model, "name"_a, "revision"_a, "quantization"_a, "files"_a,
        "download_dir"_a,
        nb::sig("def find_cached_model(name: str, revision: str, quantization: str, files: str, "
                "download_dir: str) -> "
                "tuple[str, str]"),
        "The directory or GGUF file of a model in the hub's cache, empty for none, and the first file that "
        "it lacks of "
        "those "
        "that are needed: \"model\", \"tokenizer\" or \"config\"; see quire/model_directory.h.");
  m.def("select_gguf_files", select_gguf_files, "names"_a, "quantization"_a, "repository"_a,
        "The files of a repository that are the GGUF file of a quantization, or its parts.");
  m.def("get_supported_archs", get_supported_archs,
        "The architectures that engines can run; see quire/model_registry.h.");
  m.def("load_plugin", load_plugin, "path"_a, ReleaseGil(),
        "Loads a library of models, and returns the architectures that it brings.");
  m.def("build_info", build_info_as_dict, nb::sig("def build_info() -> dict[str, typing.Any]"),
        "What the extension was made of, and what of it this machine can use.");
  m.def(
      "default_sampling_params", [](const C& config) { return default_sampling_params(config); }, "config"_a,
      "What generation_config and override_generation_config of a configuration say; see "
      "quire/generation_config.h.");
}

}  // namespace quire::bindings
