#include <map>
#include <mutex>
#include <utility>

#include "quire/error.h"
#include "quire/kv_connector.h"
#include "util/str.h"

namespace quire {
namespace {

struct Registry {
  std::mutex mutex;
  std::map<std::string, KVConnectorFactory> factories;
};
// Connectors may register before main.
Registry& registry() {
  static Registry one;
  return one;
}

}  // namespace

KVConnectorScheduler::~KVConnectorScheduler() = default;
KVConnectorWorker::~KVConnectorWorker() = default;
KVCopier::~KVCopier() = default;

void register_kv_connector(const std::string& name, KVConnectorFactory factory) {
  if (name.empty() || !factory.make_scheduler || !factory.make_worker)
    throw InvalidArgument(str("KV connector '", name, "' needs a name and both of its functions"));
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  if (!all.factories.try_emplace(name, std::move(factory)).second)
    throw InvalidArgument(str("a KV connector '", name, "' is registered already: choose another name"));
}

KVConnectorFactory find_kv_connector(const std::string& name) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  const auto found = all.factories.find(name);
  if (found != all.factories.end()) return found->second;
  std::string known;
  for (const auto& [other, factory] : all.factories) known += (known.empty() ? "" : ", ") + other;
  throw InvalidArgument(str("kv_connector '", name, "' is not registered; ",
                            known.empty() ? std::string("no connector is") : "there are " + known));
}

}  // namespace quire
