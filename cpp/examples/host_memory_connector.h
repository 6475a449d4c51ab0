// A KV connector that keeps the blocks of finished requests in host memory, for all engines of the process.
// docs/adding_a_connector.md goes through it.
#pragma once

#include <quire/error.h>
#include <quire/kv_connector.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <sstream>
#include <utility>

namespace quire_examples {

// What is kept of one block, on one rank. Keeps what it has, so that what was found stays where it is.
class HostMemoryStore {
 public:
  struct Key {
    int32_t rank = 0, group = 0;
    quire::KVBlockHash hash{};
    auto operator<=>(const Key&) const = default;
  };
  const std::vector<std::byte>* find(const Key& key) const {
    const std::lock_guard lock(mutex_);
    const auto found = blocks_.find(key);
    return found == blocks_.end() ? nullptr : &found->second;
  }
  // All or none of them are found.
  void put(std::vector<std::pair<Key, std::vector<std::byte>>> blocks) {
    const std::lock_guard lock(mutex_);
    for (auto& [key, bytes] : blocks) blocks_.try_emplace(key, std::move(bytes));
  }
  size_t num_blocks() const {
    const std::lock_guard lock(mutex_);
    return blocks_.size();
  }

 private:
  mutable std::mutex mutex_;
  std::map<Key, std::vector<std::byte>> blocks_;
};

// One block to load or to save: a line of the metadata.
struct Transfer {
  bool loads = false;
  uint64_t request_id = 0;
  int32_t group = 0;
  int32_t block_id = 0;
  int32_t first_group_block_id = 0;  // of the same tokens: what a failed load is reported as
  quire::KVBlockHash hash{};

  void write(std::ostream& out) const {
    out << loads << ' ' << request_id << ' ' << group << ' ' << block_id << ' ' << first_group_block_id << ' '
        << hash[0] << ' ' << hash[1] << '\n';
  }
  bool read(std::istream& in) {
    return static_cast<bool>(in >> loads >> request_id >> group >> block_id >> first_group_block_id >>
                             hash[0] >> hash[1]);
  }
};

class HostMemoryScheduler : public quire::KVConnectorScheduler {
 public:
  HostMemoryScheduler(std::shared_ptr<HostMemoryStore> store, quire::KVConnectorConfig config,
                      bool load_async = false)
      : store_(std::move(store)), config_(std::move(config)), load_async_(load_async) {
    for (const int32_t block_size : config_.group_block_sizes) {
      if (block_size != config_.hash_block_size)
        throw quire::InvalidArgument("this connector wants blocks of one size");
    }
  }

  std::optional<quire::KVConnectorMatch> get_num_new_matched_tokens(const quire::KVConnectorRequest& request,
                                                                    int32_t num_computed_tokens) override {
    const auto begin = static_cast<size_t>(num_computed_tokens / block_size());
    size_t end = begin;
    while (end < request.block_hashes.size() && has(request.block_hashes[end])) ++end;
    const auto num_blocks = static_cast<int32_t>(end - begin);
    return quire::KVConnectorMatch{num_blocks * block_size(), load_async_};
  }

  void update_state_after_alloc(const quire::KVConnectorRequest& request, quire::KVConnectorBlocks blocks,
                                int32_t num_external_tokens) override {
    const int32_t begin = request.num_computed_tokens;
    const int32_t end = begin + num_external_tokens;
    // The last token is computed in any case; its block may be loaded whole.
    add_transfers(/*loads=*/true, request, blocks, begin / block_size(),
                  (end + block_size() - 1) / block_size());
  }

  std::string build_connector_meta(uint64_t, std::span<const quire::KVConnectorScheduled>) override {
    std::string metadata = metadata_.str();
    metadata_.str("");
    return metadata;
  }

  // Saves the full blocks that the store does not have.
  bool request_finished(const quire::KVConnectorRequest& request, quire::KVConnectorBlocks blocks) override {
    int32_t begin = 0;
    const int32_t end = request.num_computed_tokens / block_size();
    while (begin < end && has(request.block_hashes[static_cast<size_t>(begin)])) ++begin;
    return add_transfers(/*loads=*/false, request, blocks, begin, end);
  }

 private:
  int32_t block_size() const { return config_.hash_block_size; }
  // On all ranks, and of all groups.
  bool has(const quire::KVBlockHash& hash) const {
    for (int32_t rank = 0; rank < config_.world_size; ++rank) {
      for (int32_t group = 0; group < static_cast<int32_t>(config_.group_block_sizes.size()); ++group) {
        if (store_->find({rank, group, hash}) == nullptr) return false;
      }
    }
    return true;
  }
  bool add_transfers(bool loads, const quire::KVConnectorRequest& request, quire::KVConnectorBlocks blocks,
                     int32_t begin, int32_t end) {
    bool any = false;
    for (int32_t i = begin; i < end; ++i) {
      const auto at = static_cast<size_t>(i);
      for (size_t group = 0; group < blocks.size(); ++group) {
        if (blocks[group][at] == 0) continue;  // behind a sliding window
        const Transfer transfer = {
            loads,         request.request_id,      static_cast<int32_t>(group), blocks[group][at],
            blocks[0][at], request.block_hashes[at]};
        transfer.write(metadata_);
        any = true;
      }
    }
    return any;
  }

  std::shared_ptr<HostMemoryStore> store_;
  quire::KVConnectorConfig config_;
  bool load_async_;
  std::ostringstream metadata_;  // of the step being scheduled
};

class HostMemoryWorker : public quire::KVConnectorWorker {
 public:
  HostMemoryWorker(std::shared_ptr<HostMemoryStore> store, int32_t rank)
      : store_(std::move(store)), rank_(rank) {}

  void register_kv_caches(std::span<const quire::KVCachePages> groups, quire::KVCopier& copier) override {
    groups_.assign(groups.begin(), groups.end());
    copier_ = &copier;
  }

  void start_load_kv(std::string_view metadata) override {
    std::istringstream lines{std::string(metadata)};
    for (Transfer transfer; transfer.read(lines);) {
      if (!transfer.loads) {
        saves_.push_back(transfer);
        continue;
      }
      if (!load(transfer)) result_.invalid_block_ids.push_back(transfer.first_group_block_id);
      // For those that wait; the scheduler knows which do.
      add_once(result_.finished_recving, transfer.request_id);
    }
  }

  void wait_for_save() override {
    if (saves_.empty()) return;
    std::vector<std::pair<HostMemoryStore::Key, std::vector<std::byte>>> copies;
    for (const Transfer& transfer : saves_) {
      const auto bytes = static_cast<size_t>(group(transfer).block_bytes);
      copies.emplace_back(key(transfer), std::vector<std::byte>(bytes));
      copier_->copy(copies.back().second.data(), block(transfer), bytes);
      add_once(result_.finished_sending, transfer.request_id);
    }
    copier_->synchronize();
    store_->put(std::move(copies));
    saves_.clear();
  }

  void get_finished(quire::KVConnectorResult& result) override { result = std::exchange(result_, {}); }

 protected:
  // False when the store has not got the block.
  virtual bool load(const Transfer& transfer) {
    const std::vector<std::byte>* bytes = store_->find(key(transfer));
    if (bytes == nullptr) return false;
    copier_->copy(block(transfer), bytes->data(), bytes->size());
    return true;
  }

  const quire::KVCachePages& group(const Transfer& transfer) const {
    return groups_.at(static_cast<size_t>(transfer.group));
  }
  std::byte* block(const Transfer& transfer) const {
    return group(transfer).data + transfer.block_id * group(transfer).block_bytes;
  }
  HostMemoryStore::Key key(const Transfer& transfer) const { return {rank_, transfer.group, transfer.hash}; }
  HostMemoryStore& store() const { return *store_; }
  quire::KVCopier& copier() const { return *copier_; }

 private:
  static void add_once(std::vector<uint64_t>& ids, uint64_t id) {
    if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
  }

  std::shared_ptr<HostMemoryStore> store_;
  int32_t rank_;
  std::vector<quire::KVCachePages> groups_;
  quire::KVCopier* copier_ = nullptr;
  std::vector<Transfer> saves_;  // of the step at hand, and of one before that failed
  quire::KVConnectorResult result_;
};

// For EngineConfig::kv_connector = "host_memory". Returns what all engines with that name share.
inline std::shared_ptr<HostMemoryStore> register_host_memory_connector() {
  auto store = std::make_shared<HostMemoryStore>();
  quire::register_kv_connector(
      "host_memory", {[store](const quire::KVConnectorConfig& config) {
                        return std::make_shared<HostMemoryScheduler>(store, config, config.config == "async");
                      },
                      [store](const quire::KVConnectorConfig& config) {
                        return std::make_unique<HostMemoryWorker>(store, config.rank);
                      }});
  return store;
}

}  // namespace quire_examples
