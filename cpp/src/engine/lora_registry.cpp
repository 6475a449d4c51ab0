#include "engine/lora_registry.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <new>
#include <system_error>
#include <utility>

#include "quire/error.h"
#include "quire/utf8.h"
#include "util/nearest.h"
#include "util/replace_all.h"
#include "util/str.h"

namespace quire {
namespace {

constexpr size_t kMaxNameBytes = 512;
constexpr size_t kMaxPathBytes = 4096;  // Linux's

void check_name(const std::string& name) {
  if (name.empty() || name.size() > kMaxNameBytes) {
    throw InvalidArgument(str("lora_name must have 1 to ", kMaxNameBytes, " bytes, got ", name.size()));
  }
  if (std::ranges::any_of(name, [](char c) { return static_cast<unsigned char>(c) < ' ' || c == 127; }))
    throw InvalidArgument("lora_name must not hold control characters");
  // Metrics and JSON tell it, and are UTF-8.
  if (const size_t at = find_invalid_utf8(name); at != name.npos)
    throw InvalidArgument(str("lora_name must be valid UTF-8; byte ", at, " is not"));
}

void check_path(const std::string& path) {
  if (path.empty()) throw InvalidArgument("lora_path is empty; give a directory with adapter_config.json");
  if (path.size() > kMaxPathBytes)
    throw InvalidArgument(str("lora_path must have at most ", kMaxPathBytes, " bytes, got ", path.size()));
  if (path.find('\0') != path.npos) throw InvalidArgument("lora_path must not hold null characters");
}

// Where a path leads now. What it is relative to may be another directory when the adapter is read again.
std::string absolute(const std::string& path) {
  std::error_code error;
  const std::filesystem::path found = std::filesystem::absolute(path, error);
  if (error) return path;
  std::filesystem::path plain;
  for (const auto& part : found)
    if (!part.empty() && part != ".") plain /= part;  // not "..", which a link decides
  return plain.string();
}

}  // namespace

LoraRegistry::Use::Use(LoraRegistry& registry, std::shared_ptr<Adapter> adapter)
    : registry_(registry), adapter_(std::move(adapter)) {
  ++adapter_->num_uses;
  adapter_->last_used = ++registry_.num_uses_;
}

LoraRegistry::Use::~Use() {
  const std::lock_guard lock(registry_.mutex_);
  if (--adapter_->num_uses > adapter_->num_waiting_uses) return;
  if (adapter_->num_uses == 0 && adapter_->is_removed) registry_.forget(*adapter_);
  registry_.changed_.notify_all();  // there may be room now
}

LoraId LoraRegistry::Use::id() const { return adapter_->id; }
int32_t LoraRegistry::Use::lora_int_id() const { return adapter_->info.lora_int_id; }
const std::string& LoraRegistry::Use::fingerprint() const { return adapter_->fingerprint; }

LoraRegistry::LoraRegistry(LoraLoader& loader, int32_t max_cpu_loras, bool takes_fingerprints)
    : loader_(loader), max_cpu_loras_(max_cpu_loras), takes_fingerprints_(takes_fingerprints) {}

LoraRegistry::~LoraRegistry() { close(); }

void LoraRegistry::close() {
  {
    const std::lock_guard lock(mutex_);
    is_closed_ = true;
  }
  changed_.notify_all();
  const std::lock_guard adds(adding_);
  for (std::thread* thread : {&reader_, &clock_})
    if (thread->joinable()) thread->join();
  // What waits holds adapters in use, which hold what waits.
  std::vector<Waiter> never_called;
  std::deque<std::shared_ptr<Adapter>> never_read;
  const std::lock_guard lock(mutex_);
  never_read.swap(to_read_);
  for (const auto& adapter : never_read)
    std::ranges::move(std::exchange(adapter->waiting, {}), std::back_inserter(never_called));
}

std::shared_ptr<LoraRegistry::Adapter> LoraRegistry::find(const std::string& name) const {
  const auto found = std::ranges::find_if(adapters_, [&](const auto& adapter) {
    return !adapter->is_removed && adapter->info.lora_name == name;
  });
  return found == adapters_.end() ? nullptr : *found;
}

void LoraRegistry::check_is_free(const LoraRequest& request, const Adapter* replaced) const {
  if (const auto other = find(request.lora_name); other && other.get() != replaced) {
    if (other->directory == absolute(request.lora_path)) {
      throw InvalidArgument(str("lora_name '", request.lora_name, "' was added with lora_int_id ",
                                other->info.lora_int_id, ", got ", request.lora_int_id,
                                ": give 0 for the one that is there, remove that one first, or set "
                                "load_inplace"));
    }
    throw InvalidArgument(str("lora_name '", request.lora_name, "' is that of ", other->directory,
                              ": remove that one first, choose another name, or set load_inplace"));
  }
  if (request.lora_int_id == 0) return;
  for (const auto& other : adapters_) {
    if (other->is_removed || other.get() == replaced || other->info.lora_int_id != request.lora_int_id)
      continue;
    throw InvalidArgument(str("lora_int_id ", request.lora_int_id, " is that of '", other->info.lora_name,
                              "': choose another number, or 0 for none"));
  }
}

LoraRegistry::Adapter* LoraRegistry::least_recently_used(const Adapter* except) const {
  Adapter* oldest = nullptr;
  for (const auto& adapter : adapters_) {
    if (adapter.get() == except) continue;
    const bool is_free = adapter->place == Place::kInMemory && !adapter->info.is_pinned &&
                         !adapter->is_being_replaced && adapter->num_uses == adapter->num_waiting_uses;
    if (!is_free) continue;
    if (oldest == nullptr || adapter->last_used < oldest->last_used) oldest = adapter.get();
  }
  return oldest;
}

bool LoraRegistry::has_room() const {
  return num_in_memory_ < max_cpu_loras_ || least_recently_used() != nullptr;
}

void LoraRegistry::take_room(const Adapter* replaced) {
  if (num_in_memory_ >= max_cpu_loras_) {
    Adapter* oldest = least_recently_used(replaced);
    const bool gives_its_own =
        replaced != nullptr && replaced->place == Place::kInMemory && replaced->num_uses == 0;
    if (oldest == nullptr && !gives_its_own) {
      throw ResourceExhausted(str("all ", max_cpu_loras_,
                                  " adapters in memory are pinned, or unfinished requests have them: raise "
                                  "max_cpu_loras, or wait"));
    }
    if (oldest != nullptr) {
      loader_.unload(oldest->id);
      oldest->place = Place::kOnDisk;
      --num_in_memory_;
    }
  }
  ++num_in_memory_;
}

// Nobody can ask for it any more.
void LoraRegistry::forget(Adapter& adapter) {
  if (adapter.place == Place::kInMemory && !is_closed_) {
    loader_.unload(adapter.id);
    --num_in_memory_;
  }
  std::erase_if(adapters_, [&](const auto& each) { return each.get() == &adapter; });
}

bool LoraRegistry::add(const LoraRequest& request) {
  check_name(request.lora_name);
  check_path(request.lora_path);
  if (request.lora_int_id < 0)
    throw InvalidArgument(str("lora_int_id must be at least 1, or 0 for none, got ", request.lora_int_id));
  const std::lock_guard adds(adding_);
  const auto adapter = std::make_shared<Adapter>();
  adapter->directory = absolute(request.lora_path);
  adapter->info.lora_name = request.lora_name;
  adapter->info.lora_int_id = request.lora_int_id;
  adapter->info.lora_path = request.lora_path;
  adapter->place = Place::kComing;
  std::shared_ptr<Adapter> replaced;
  {
    const std::lock_guard lock(mutex_);
    if (is_closed_) throw ResourceExhausted("the engine has ended");
    const auto there = find(request.lora_name);
    if (request.load_inplace) replaced = there;
    const bool is_same = there && there->directory == adapter->directory &&
                         (request.lora_int_id == 0 || request.lora_int_id == there->info.lora_int_id);
    if (is_same && !replaced) return false;
    check_is_free(request, replaced.get());
    take_room(replaced.get());
    // It stays until the new one is there: its files may be those that are read now.
    if (replaced) replaced->is_being_replaced = true;
    adapter->id = ++last_id_;
  }
  try {
    read(*adapter);
  } catch (...) {
    const std::lock_guard lock(mutex_);
    if (replaced) replaced->is_being_replaced = false;
    changed_.notify_all();
    throw;
  }
  const std::lock_guard lock(mutex_);
  if (replaced) replaced->is_being_replaced = false;
  if (!takes_fingerprints_) adapter->fingerprint = version_of(request.lora_name, adapter->stamp);
  adapter->last_used = ++num_uses_;
  auto place = adapters_.end();
  if (replaced && !replaced->is_removed) {  // nor was it meanwhile
    if (request.lora_int_id == 0) adapter->info.lora_int_id = replaced->info.lora_int_id;
    adapter->info.is_pinned = replaced->info.is_pinned;
    place = std::ranges::find(adapters_, replaced);
  }
  adapters_.insert(place, adapter);
  if (replaced) retire(*replaced);
  changed_.notify_all();  // nobody has it yet: it may give its room
  return true;
}

std::string LoraRegistry::version_of(const std::string& lora_name, const std::string& stamp) {
  if (names_.size() >= kMaxNames && !names_.contains(lora_name)) {
    for (const auto& [other, name] : names_) first_version_ = std::max(first_version_, name.version + 1);
    names_.clear();
  }
  Name& name = names_.try_emplace(lora_name, Name{first_version_, stamp}).first->second;
  if (name.stamp != stamp) name = {name.version + 1, stamp};
  return name.version > 0 ? std::to_string(name.version) : "";
}

// Nobody can name it from now on.
void LoraRegistry::retire(Adapter& adapter) {
  if (adapter.is_removed) return;
  adapter.is_removed = true;
  if (adapter.num_uses == 0) forget(adapter);
  changed_.notify_all();
}

// The exception at hand, saying which adapter it is about. Who adds one knows the directory by the path that
// was given; requests that it is read again for are of clients who know its name.
void LoraRegistry::rethrow_for(const Adapter& adapter, bool is_first) {
  const std::string& name = adapter.info.lora_name;
  const auto told = [&](const std::exception& error) {
    return replace_all(error.what(), adapter.directory, is_first ? adapter.info.lora_path : "lora_path");
  };
  const auto no_memory = [&](const std::string& why) {
    return ResourceExhausted(
        str("there is no memory for adapter '", name, "': ", why, "; remove others, or lower max_cpu_loras"));
  };
  try {
    throw;
  } catch (const InvalidArgument& error) {
    if (is_first) throw InvalidArgument(told(error));
    throw InvalidArgument(str("lora_name '", name, "' cannot be read again: ", told(error)));
  } catch (const ResourceExhausted& error) {
    throw no_memory(told(error));
  } catch (const std::bad_alloc&) {
    throw no_memory("none can be allocated");
  }
}

// What it throws leaves the room free again.
void LoraRegistry::read(Adapter& adapter) {
  const bool is_first = adapter.stamp.empty();
  LoadedLora loaded;
  try {
    loaded = loader_.load(adapter.id, adapter.directory, takes_fingerprints_ && is_first);
    if (!is_first && adapter.stamp != loaded.stamp) {
      loader_.unload(adapter.id);
      throw InvalidArgument("its files have changed since it was added: remove it, and add it anew");
    }
  } catch (...) {
    {
      const std::lock_guard lock(mutex_);
      adapter.place = Place::kOnDisk;
      --num_in_memory_;
      changed_.notify_all();
    }
    rethrow_for(adapter, is_first);
  }
  const std::lock_guard lock(mutex_);
  adapter.info.rank = loaded.rank;
  adapter.stamp = loaded.stamp;
  if (!loaded.fingerprint.empty()) adapter.fingerprint = loaded.fingerprint;
  adapter.place = Place::kInMemory;
  changed_.notify_all();
}

bool LoraRegistry::remove(const std::string& name) {
  const std::lock_guard lock(mutex_);
  const auto adapter = find(name);
  if (!adapter) return false;
  retire(*adapter);
  return true;
}

bool LoraRegistry::pin(const std::string& name) {
  std::shared_ptr<const Use> held;
  {
    const std::lock_guard lock(mutex_);
    held = use_of(name);
  }
  if (!held) return false;
  load_now(*held);
  const std::lock_guard lock(mutex_);
  held->adapter_->info.is_pinned = true;
  return !held->adapter_->is_removed;
}

std::vector<LoraInfo> LoraRegistry::list() const {
  const std::lock_guard lock(mutex_);
  std::vector<LoraInfo> all;
  for (const auto& adapter : adapters_) {
    if (adapter->is_removed) continue;
    LoraInfo& info = all.emplace_back(adapter->info);
    info.is_loaded = adapter->place == Place::kInMemory;
    info.num_requests = adapter->num_uses;
  }
  return all;
}

bool LoraRegistry::has(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  return find(name) != nullptr;
}

std::shared_ptr<const LoraRegistry::Use> LoraRegistry::use_of(const std::string& name) {
  auto adapter = find(name);
  return adapter ? std::make_shared<const Use>(*this, std::move(adapter)) : nullptr;
}

std::shared_ptr<const LoraRegistry::Use> LoraRegistry::use(const std::string& name) {
  const std::lock_guard lock(mutex_);
  if (auto found = use_of(name)) return found;
  std::vector<std::string> known;
  for (const auto& adapter : adapters_)
    if (!adapter->is_removed) known.push_back(adapter->info.lora_name);
  const std::string shown = name.substr(0, 200);  // a request's may be long, and who is nearest a long search
  if (known.empty())
    throw InvalidArgument(str("lora_name '", shown, "': no adapter was added; add_lora does"));
  throw InvalidArgument(str("lora_name '", shown, "' is no adapter's; the nearest is '",
                            nearest_name(shown, known), "', and add_lora adds others"));
}

}  // namespace quire
