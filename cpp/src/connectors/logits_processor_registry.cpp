// Which logits processors there are, and the plugin libraries that more come from.
#include <dlfcn.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include "connectors/thinking_budget.h"
#include "formats/json.h"
#include "quire/error.h"
#include "quire/logits_processor.h"
#include "util/str.h"

namespace quire {
namespace {

struct ProcessorRegistry {
  std::recursive_mutex mutex;  // a library registers while it is loaded
  std::map<std::string, LogitsProcessorFactory> factories{{kThinkingBudget, thinking_budget_factory()}};
  std::map<std::string, std::vector<std::string>> libraries;  // by path: what they have registered
};
// Processors may register before main.
ProcessorRegistry& processor_registry() {
  static ProcessorRegistry one;
  return one;
}

class LibraryRegistrar final : public LogitsProcessorRegistrar {
 public:
  void add(const std::string& name, LogitsProcessorFactory factory) override {
    register_logits_processor(name, std::move(factory));
    names.push_back(name);
  }
  std::vector<std::string> names;
};

std::vector<std::string> load_library(const std::string& path) {
  const auto fail = [&](const std::string& why) {
    throw InvalidArgument(str("logits_processors: cannot load '", path, "': ", why));
  };
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = dlerror();
    fail(why != nullptr ? why : "it is no library");
  }
  const auto function =
      reinterpret_cast<RegisterLogitsProcessors>(dlsym(library, "quire_register_logits_processors"));
  if (function == nullptr) fail("it does not export quire_register_logits_processors (logits_processor.h)");
  LibraryRegistrar registrar;
  const char* refusal = function(kLogitsProcessorVersion, registrar);
  if (refusal != nullptr) fail(refusal);
  if (registrar.names.empty()) fail("it registers no processor");
  return std::move(registrar.names);
}

}  // namespace

void register_logits_processor(const std::string& name, LogitsProcessorFactory factory) {
  if (name.empty() || name.find('/') != std::string::npos || !factory.make || !factory.validate_params)
    throw InvalidArgument(
        str("logits processor '", name, "' needs a name without '/' and both of its functions"));
  ProcessorRegistry& all = processor_registry();
  const std::lock_guard lock(all.mutex);
  if (!all.factories.try_emplace(name, std::move(factory)).second)
    throw InvalidArgument(str("a logits processor '", name, "' is registered already: choose another name"));
}

std::vector<NamedLogitsProcessor> find_logits_processors(
    const std::vector<std::string>& entries,
    const std::vector<std::shared_ptr<const NamedLogitsProcessor>>& own) {
  ProcessorRegistry& all = processor_registry();
  const std::lock_guard lock(all.mutex);
  std::vector<NamedLogitsProcessor> found;
  const auto add = [&](const std::string& name) {
    const auto mine = std::ranges::find(own, name, [](const auto& other) { return other->name; });
    const auto factory = all.factories.find(name);
    if (mine == own.end() && factory == all.factories.end()) {
      std::string known;
      for (const auto& [other, ignored] : all.factories) known += (known.empty() ? "" : ", ") + other;
      throw InvalidArgument(str("logits_processors has '", name, "', which is not registered; there are ",
                                known, ", or give the path of a plugin library, with a '/'"));
    }
    const bool twice = std::ranges::any_of(found, [&](const auto& other) { return other.name == name; });
    if (!twice) found.push_back({name, mine != own.end() ? (*mine)->factory : factory->second});
  };
  for (const std::string& entry : entries) {
    const bool is_mine = std::ranges::any_of(own, [&](const auto& other) { return other->name == entry; });
    if (is_mine || entry.find('/') == std::string::npos) {
      add(entry);
      continue;
    }
    auto library = all.libraries.find(entry);
    if (library == all.libraries.end()) library = all.libraries.emplace(entry, load_library(entry)).first;
    for (const std::string& name : library->second) add(name);
  }
  return found;
}

bool has_extra_arg(const SamplingParams& params, std::string_view name) {
  if (params.extra_args == JsonObject()) return false;
  return try_parse_json(params.extra_args.text).contains(name);
}

}  // namespace quire
