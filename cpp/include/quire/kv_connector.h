// Keys and values that come from, or go to, somewhere else: another engine, host memory, a store.
//
// A connector has two sides that meet in an opaque string, once per step. The scheduler's side decides; the
// worker's side, one per rank, moves the bytes, and says which requests' blocks are filled, which are sent,
// and which loads failed. EngineConfig::kv_connector names one that was registered;
// docs/adding_a_connector.md builds one.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "quire/export.h"
#include "quire/kv_events.h"

namespace quire {

// An encoder's input: its outputs take the place of prompt tokens [offset, offset + num_embeds).
struct MultiModalFeature {
  std::string mm_hash;  // names the content: equal hashes share one encoder run
  int32_t offset = 0;
  int32_t num_embeds = 0;
};

// A request as a connector sees it. Valid during the call. Keys and values belong to all of it: a store must
// tell apart what differs in tokens, LoRA, salt, or a multimodal input that begins before the last of the
// tokens. The block hashes do, in engines of one prefix_caching_hash_seed.
struct KVConnectorRequest {
  uint64_t request_id = 0;
  std::span<const int32_t> token_ids;  // prompt, then output
  int32_t num_prompt_tokens = 0;
  // Names are given anew: under one name engines may have different adapters, and one engine another one
  // later. What tells them apart is the fingerprint, 64 digits that are the same wherever an adapter has the
  // same modules, scales and values. Both are empty for a request without an adapter.
  std::string_view lora_name;
  std::string_view lora_fingerprint;
  std::string_view cache_salt;
  std::span<const MultiModalFeature> mm_features;  // by offset, not overlapping
  // The i-th names the first (i + 1) * KVConnectorConfig::hash_block_size tokens with LoRA (its name and its
  // fingerprint), salt and inputs.
  std::span<const KVBlockHash> block_hashes;
  // The first ones, whose keys and values are in its blocks once the steps launched so far have run; at most
  // token_ids.size(). 0 when nothing in them is to be used.
  int32_t num_computed_tokens = 0;
};

// The blocks that a request has, by KV cache group: the i-th id of a group holds tokens [i * block_size,
// (i + 1) * block_size), and is 0 where nothing is kept.
using KVConnectorBlocks = std::span<const std::span<const int32_t>>;

// One request of a step.
struct KVConnectorScheduled {
  uint64_t request_id = 0;
  int32_t num_computed_tokens = 0;   // before the step
  int32_t num_scheduled_tokens = 0;  // in it
};

struct KVConnectorMatch {
  int32_t num_tokens = 0;   // that can be loaded, after those that are cached here already
  bool load_async = false;  // the request waits until its load is reported as received; else it is loaded
                            // before the forward pass of the step that begins it
};

// Called on the scheduler's thread; must return soon. An exception ends the engine.
class QUIRE_API KVConnectorScheduler {
 public:
  virtual ~KVConnectorScheduler();

  // How many tokens beyond the first `num_computed_tokens` could be loaded; nullopt: not known yet, ask again
  // at the next step. May be called more than once for a request, and changes nothing.
  virtual std::optional<KVConnectorMatch> get_num_new_matched_tokens(const KVConnectorRequest& request,
                                                                     int32_t num_computed_tokens) = 0;

  // The request has blocks now. Its first num_computed_tokens were found here, and the `num_external_tokens`
  // that follow are to be loaded into its blocks. Called for 0 too.
  virtual void update_state_after_alloc(const KVConnectorRequest& request, KVConnectorBlocks blocks,
                                        int32_t num_external_tokens) = 0;

  // What the worker's side must know for this step; empty: nothing. A step that computes nothing runs for it.
  virtual std::string build_connector_meta(uint64_t step_id,
                                           std::span<const KVConnectorScheduled> scheduled) = 0;

  // The request has ended. True: its blocks are still to be sent, and must be held until the worker's side
  // reports that they were.
  virtual bool request_finished(const KVConnectorRequest& request, KVConnectorBlocks blocks) = 0;
};

// Where one KV cache group lies on one rank. A block's pages, one for each of the group's layers, lie next to
// each other, so that a block is one piece of block_bytes. What a page holds is the backend's affair: only an
// engine of the same model, dtype, block size, device kind and rank can use it.
struct KVCachePages {
  std::byte* data = nullptr;  // block 0, in device memory for "cuda"; block b begins at b * block_bytes
  int64_t block_bytes = 0;
  int64_t page_bytes = 0;  // that of the i-th of `layers` begins at i * page_bytes of a block
  int32_t num_blocks = 0;  // block 0 included, which is nobody's
  int32_t block_size = 0;  // tokens
  std::vector<int32_t> layers;
};

// Moves bytes between a rank's KV cache and the host's memory, in order with what the rank computes: a copy
// sees what was computed before it, and what follows sees the copy. On the rank's thread.
class QUIRE_API KVCopier {
 public:
  virtual ~KVCopier();
  // Either side may be the host's; on a device enqueued, so host memory that is written must stay until
  // `synchronize`. Throws InternalError.
  virtual void copy(void* to, const void* from, size_t bytes) = 0;
  // Waits for what was enqueued.
  virtual void synchronize() = 0;
  // The rank's cudaStream_t, for connectors with kernels or copies of their own; null on the host.
  virtual void* stream() const = 0;
};

// What the worker's side has to tell the scheduler, with the step's result. Where several ranks do, a request
// is finished when every rank has said so.
struct KVConnectorResult {
  std::vector<uint64_t> finished_sending;  // requests whose blocks may be freed
  std::vector<uint64_t> finished_recving;  // requests that waited and whose blocks are filled, or failed
  // Loads that failed: the block of group 0 that has the same tokens. Said with, or before, the request's
  // finished_recving, or in the step that loads it.
  std::vector<int32_t> invalid_block_ids;

  void clear() {
    finished_sending.clear();
    finished_recving.clear();
    invalid_block_ids.clear();
  }
};

// One per rank, called on its thread, in this order in every step. An exception fails the step. After any
// failure the rest of the calls is left out: what was to be saved in that step is still to be saved.
class QUIRE_API KVConnectorWorker {
 public:
  virtual ~KVConnectorWorker();

  // Once, before the first step. `copier` lives as long as the worker.
  virtual void register_kv_caches(std::span<const KVCachePages> groups, KVCopier& copier) = 0;

  // Before the step computes, with what build_connector_meta made for it: what it is to load without waiting
  // must be loaded, or enqueued with `copier`, on return, but for layers that wait_for_layer_load waits for.
  virtual void start_load_kv(std::string_view metadata) = 0;

  // Whether the next two want to be called; then no step runs as one CUDA graph. Does not change.
  virtual bool has_layer_hooks() const { return false; }
  // Before the step's attention reads this layer.
  virtual void wait_for_layer_load(int32_t /*layer*/) {}
  // The step's keys and values of this layer are computed, or enqueued.
  virtual void save_kv_layer(int32_t /*layer*/) {}

  // The step is computed, or enqueued. Blocks that are read by what is enqueued on return may be freed.
  virtual void wait_for_save() = 0;

  // Appends to `result`. It reaches the scheduler when the step has run.
  virtual void get_finished(KVConnectorResult& result) = 0;
};

// What both sides are made for.
struct KVConnectorConfig {
  std::string config;  // EngineConfig::kv_connector_config
  std::string model;   // EngineConfig::model
  int32_t rank = 0;    // the worker's
  int32_t world_size = 1;
  // The scheduler's.
  int32_t hash_block_size = 0;             // tokens a block hash
  std::vector<int32_t> group_block_sizes;  // tokens a block, by KV cache group
};

struct KVConnectorFactory {
  std::function<std::shared_ptr<KVConnectorScheduler>(const KVConnectorConfig&)> make_scheduler;
  std::function<std::unique_ptr<KVConnectorWorker>(const KVConnectorConfig&)> make_worker;
};

// Makes `name` known to EngineConfig::kv_connector, for the rest of the process. Throws InvalidArgument when
// it is known already, or a function is missing. Thread-safe.
QUIRE_API void register_kv_connector(const std::string& name, KVConnectorFactory factory);
// Throws InvalidArgument, with the names that are known. Thread-safe.
QUIRE_API KVConnectorFactory find_kv_connector(const std::string& name);

}  // namespace quire
