// Keys and values that come from, or go to, somewhere else: another engine, host memory, a store.
//
// A connector has two sides that meet in an opaque string, once per step. This is the scheduler's side: it
// decides. The worker's side moves the bytes, and reports through the step's results which requests' blocks
// are filled, which are sent, and which loads failed.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "quire/export.h"

namespace quire {

// An encoder's input: its outputs take the place of prompt tokens [offset, offset + num_embeds).
struct MultiModalFeature {
  std::string mm_hash;  // names the content: equal hashes share one encoder run
  int32_t offset = 0;
  int32_t num_embeds = 0;
};

// A request as a connector sees it. Valid during the call. Keys and values belong to all of it: a store must
// tell apart what differs in tokens, LoRA, salt, or a multimodal input that begins before the last of the
// tokens.
struct KVConnectorRequest {
  uint64_t request_id = 0;
  std::span<const int32_t> token_ids;  // prompt, then output
  int32_t num_prompt_tokens = 0;
  std::string_view lora_name;
  std::string_view cache_salt;
  std::span<const MultiModalFeature> mm_features;  // by offset, not overlapping
};

// One request of a step's plan.
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

  // The request has blocks now, in KV cache group 0, for its first tokens; the last `num_external_tokens`
  // tokens of what is computed are to be loaded into them. Called for 0 too.
  virtual void update_state_after_alloc(const KVConnectorRequest& request, std::span<const int32_t> block_ids,
                                        int32_t num_external_tokens) = 0;

  // What the worker's side must know for this step; empty: nothing. A step that computes nothing runs for it.
  virtual std::string build_connector_meta(uint64_t step_id,
                                           std::span<const KVConnectorScheduled> scheduled) = 0;

  // The request has ended. True: its blocks, of group 0, are still to be sent, and must be held until the
  // worker's side reports that they were.
  virtual bool request_finished(const KVConnectorRequest& request, std::span<const int32_t> block_ids) = 0;
};

}  // namespace quire
