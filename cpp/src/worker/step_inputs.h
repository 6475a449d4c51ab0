// From the persistent batch, and what a step is to compute of it, to what the model reads.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "device/device_arena.h"
#include "device/staging_ring.h"
#include "layers/context.h"
#include "layers/lora.h"
#include "models/model.h"
#include "quire/error.h"
#include "worker/input_batch.h"

namespace quire {

// A step, in the order of the batch's rows.
struct StepShape {
  InputBatch* batch = nullptr;
  std::span<const int32_t> num_scheduled;  // per row: tokens to compute
  std::span<const int32_t> sampling_rows;  // ascending: the rows that are sampled from
  int32_t num_tokens = 0;                  // of all rows
  int32_t num_decode_rows = 0;             // the first ones, with one token each
  bool has_new_prefixes = false;           // AttentionMetadata's
  // Of each KV cache group: how many tokens in front the decode rows have the same blocks for.
  std::span<const int32_t> common_prefix_lens;
  LoraRows loras;
};

// A request that has more blocks than in the step before.
struct GrownState {
  int32_t group, state_index;
};

// One per worker, on its thread.
class StepInputs {
 public:
  virtual ~StepInputs() = default;

  // Before a request leaves the batch that may come back: the batch gets those of its tokens that only a
  // device has.
  virtual void bring_tokens(const LaunchContext& launch, InputBatch& batch,
                            const CachedRequestState& request) = 0;

  // Says what the step reads; `build` makes it so, and on a device sends all that is staged by then.
  virtual void stage(const LaunchContext& launch, const StepShape& step) = 0;
  // `stage` for the step staged last once more, with each row one token further; each had one token, which it
  // was sampled behind. Only where StepBuffers::can_repeat.
  virtual void stage_repeat(const LaunchContext&, InputBatch&, std::span<const GrownState> /*grown*/) {
    throw InternalError("these inputs are always staged anew");
  }
  // Pads with rows without tokens, and tokens that are computed and belong to nobody. A step of padding alone
  // has staged nothing. `uniform_query_len`: what rows have in a graph that is captured or replayed.
  // `tells_common_prefix`: whether attention hears of common_prefix_lens.
  virtual void build(const LaunchContext& launch, int32_t padded_rows, int32_t padded_tokens,
                     int32_t uniform_query_len = 1, bool tells_common_prefix = false) = 0;

  // The step built last.
  virtual ModelInput model_input() const = 0;
  virtual std::span<const AttentionMetadata> attention_metadata() const = 0;
  // [sampling rows and their drafts] int32: the last token of each row that is not a draft, and its drafts.
  virtual TensorView logits_index() const = 0;
  // The rows with an adapter of the step that was staged last and had any, in the kernels' memory. At
  // addresses that stay, on a device.
  virtual LoraBatch lora_batch() const = 0;

  // The tokens of a request in the batch, prompt first, in the kernels' memory: max_model_len places. A
  // device's sampler writes the next one there.
  virtual int32_t* token_ids(const CachedRequestState& request) const = 0;
};

// What inputs are sized by.
struct StepInputsConfig {
  int32_t max_num_seqs = 0;
  int32_t max_num_batched_tokens = 0;
  int32_t max_model_len = 0;
  std::vector<int32_t> block_sizes;    // of each KV cache group
  size_t attention_plan_bytes = 0;     // of the backend, for one group
  int32_t num_speculative_tokens = 0;  // drafts of a row
  int32_t max_lora_segments = 0;       // of a step; 0: there are no adapters
  bool has_lora_row_slots = false;     // whether adapters may change experts: LoraBatch::row_slots
};

std::unique_ptr<StepInputs> make_host_inputs(const StepInputsConfig& config);

// Bytes of DeviceInputsMemory::loras.
size_t lora_inputs_bytes(const StepInputsConfig& config);
// What a device's inputs keep on the device: tables for every request, and the inputs at addresses that never
// change. A measuring arena says how much that is.
struct DeviceInputsMemory {
  DeviceInputsMemory(const StepInputsConfig& config, DeviceArena& arena);

  struct Group {
    int32_t* block_table;        // [max_num_seqs, max_blocks] by state index
    int64_t* slot_mapping;       // [max_num_batched_tokens]
    int32_t* common_prefix_len;  // [1]
    std::byte* attention_plan;
    int32_t block_size;
    int32_t max_blocks;
  };
  int32_t* tokens;                    // [max_num_seqs, max_model_len] by state index
  int32_t *input_ids, *positions;     // [max_num_batched_tokens]
  int32_t* query_start_loc;           // [max_num_seqs + 1]
  int32_t *seq_lens, *state_indices;  // [max_num_seqs]
  int32_t* num_tokens;                // [1]
  int32_t* loras;                     // lora_inputs_bytes(config); null: there are no adapters
  std::vector<Group> groups;
};
// Bytes of the staging ring that a step takes at most; what changed beyond that goes in several rounds, with
// a wait between them. All of the longest row fits.
size_t device_inputs_staging_bytes(const StepInputsConfig& config);
std::unique_ptr<StepInputs> make_device_inputs(const StepInputsConfig& config, const BatchOps& ops,
                                               const DeviceInputsMemory& memory, StagingRing& staging);

}  // namespace quire
