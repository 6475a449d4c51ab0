#include "models/model_plugin.h"

#include <dlfcn.h>

#include <exception>
#include <map>
#include <mutex>
#include <optional>

#include "models/model_registry.h"
#include "quire/error.h"
#include "util/str.h"

namespace quire {

const char kModelPluginLibrary = 0;

namespace {

struct Plugins {
  std::recursive_mutex mutex;  // a plugin may load another one
  std::map<std::string, std::vector<std::string>> by_path;
  std::map<void*, std::vector<std::string>> by_handle;  // a library has many paths
};
// Plugins may be loaded before main.
Plugins& plugins() {
  static Plugins all;
  return all;
}

class CollectingRegistrar final : public ModelRegistrar {
 public:
  void add(const std::string& architecture, ModelFactory factory, ConfigAdapter adapt) override {
    if (architecture.empty() || factory == nullptr)
      throw InvalidArgument(str("model '", architecture, "' needs a name and a factory"));
    for (const PluginModel& other : models)
      if (other.architecture == architecture)
        throw InvalidArgument(str("it registers '", architecture, "' twice"));
    models.push_back({architecture, factory, adapt});
  }
  std::vector<PluginModel> models;
};

// Why a library is no plugin of this build; nothing when it is one.
std::optional<std::string> refusal(const ModelPlugin* plugin) {
  if (plugin == nullptr)
    return "it exports no 'quire_model_plugin'; end one of its files in QUIRE_MODEL_PLUGIN, outside of "
           "unnamed namespaces";
  if (plugin->version != model_plugin_version())
    return str("it was built against another version of Quire; build it against this one, ", QUIRE_VERSION);
  if (plugin->library == &kModelPluginLibrary) return std::nullopt;
  Dl_info ours{}, theirs{};
  dladdr(&kModelPluginLibrary, &ours);
  dladdr(plugin->library, &theirs);
  const auto name = [](const Dl_info& info) { return info.dli_fname != nullptr ? info.dli_fname : "?"; };
  return str("it is linked to another copy of Quire, ", name(theirs), ", not to ", name(ours));
}

// Registers what the plugin has, and returns their names; else says why not. The exception is gone when this
// returns: its code may be the library's.
std::vector<std::string> register_models(const ModelPlugin& plugin, const std::string& path,
                                         std::optional<std::string>& why) {
  std::vector<std::string> names;
  try {
    CollectingRegistrar registrar;
    plugin.register_models(registrar);
    for (const PluginModel& model : registrar.models) names.push_back(model.architecture);
    if (names.empty()) {
      why = "it registers no model";
    } else {
      register_plugin_models(registrar.models, path);
    }
  } catch (const std::exception& error) {
    why = error.what();
  } catch (...) {
    why = "it threw what is no std::exception";
  }
  return names;
}

std::string open_error() {
  const char* error = dlerror();
  const std::string text = error != nullptr ? error : "it is no library";
  const bool is_unlinked = text.find("undefined symbol") != std::string::npos;
  return text + (is_unlinked ? str("; it was built against another version of Quire, or not linked to it: "
                                   "build it against this one, ",
                                   QUIRE_VERSION, ", with quire_add_model_plugin")
                             : std::string());
}

}  // namespace

std::vector<std::string> load_plugin(const std::string& path) {
  if (path.find('/') == std::string::npos || path.find('\0') != std::string::npos)
    throw InvalidArgument(str("plugins: '", path, "' is no path of a library: write one with a '/', like './",
                              path.empty() ? "libmodels.so" : path.c_str(), "'"));
  Plugins& all = plugins();
  const std::lock_guard lock(all.mutex);
  if (const auto found = all.by_path.find(path); found != all.by_path.end()) return found->second;
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw InvalidArgument(str("plugins: cannot load '", path, "': ", open_error()));
  if (const auto found = all.by_handle.find(library); found != all.by_handle.end())
    return all.by_path[path] = found->second;
  const auto* plugin = static_cast<const ModelPlugin*>(dlsym(library, "quire_model_plugin"));
  std::optional<std::string> why = refusal(plugin);
  std::vector<std::string> names;
  if (!why) names = register_models(*plugin, path, why);
  if (why) {
    dlclose(library);  // one that is built anew, at the same place, is then another one
    throw InvalidArgument(str("plugins: cannot load '", path, "': ", *why));
  }
  return all.by_path[path] = all.by_handle[library] = std::move(names);
}

}  // namespace quire
