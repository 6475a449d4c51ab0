// The kernel table of CUDA devices, where this build's machine code runs.
#include "common/architectures.h"
#include "ops.h"
#include "quire/kernels/backend_registry.h"
#include "quire/kernels/cuda_device.h"

namespace quire {
namespace {

constexpr KernelTable make_table(const char* variant) {
  return {
      .backend = "cuda",
      .variant = variant,
      .weight_layout = "cuda-rows",
      .create_state = cuda::create_state,
      .destroy_state = cuda::destroy_state,
      .embedding = cuda::embedding,
      .rms_norm = cuda::rms_norm,
      .fused_add_rms_norm = cuda::fused_add_rms_norm,
      .fused_norm_add_rms_norm = cuda::fused_norm_add_rms_norm,
      .layer_norm = cuda::layer_norm,
      .rotary_embedding = cuda::rotary_embedding,
      .rotary_embedding_and_write_kv = cuda::rotary_embedding_and_write_kv,
      .activate = cuda::activate,
      .activate_and_mul = cuda::activate_and_mul,
      .soft_cap = cuda::soft_cap,
      .scale = cuda::scale,
      .add = cuda::add,
      .gate_rows = cuda::gate_rows,
      .gather_rows = cuda::gather_rows,
      .linear_weight_bytes = cuda::linear_weight_bytes,
      .linear_pack_rows = nullptr,
      .linear_workspace_bytes = cuda::linear_workspace_bytes,
      .linear = cuda::linear,
      .linear_add = cuda::linear_add,
      .linear_activate_and_mul = cuda::linear_activate_and_mul,
      .route_to_experts = cuda::route_to_experts,
      .fused_experts_workspace_bytes = cuda::fused_experts_workspace_bytes,
      .fused_experts = cuda::fused_experts,
      .routed_experts = cuda::routed_experts,
      .lora_workspace_bytes = cuda::lora_workspace_bytes,
      .add_lora = cuda::add_lora,
      .linear_add_lora = cuda::linear_add_lora,
      .linear_add_lora_activate_and_mul = cuda::linear_add_lora_activate_and_mul,
      .lora_segment_rows = cuda::kLoraSegmentRows,
      .lora_rank_multiple = cuda::kLoraRankMultiple,
      .select_attention = cuda::select_attention,
      .kv_page_bytes = cuda::kv_page_bytes,
      .attention_workspace_bytes = cuda::attention_workspace_bytes,
      .attention_plan_bytes = cuda::attention_plan_bytes,
      .use_cascade_attention = cuda::use_cascade_attention,
      .plan_attention = cuda::plan_attention,
      .write_kv_cache = cuda::write_kv_cache,
      .paged_attention = cuda::paged_attention,
      .apply_logit_bias = cuda::apply_logit_bias,
      .apply_bitmask = cuda::apply_bitmask,
      .apply_bad_words = cuda::apply_bad_words,
      .apply_penalties = cuda::apply_penalties,
      .sampling_workspace_bytes = cuda::sampling_workspace_bytes,
      .sample = cuda::sample,
      .log_softmax = cuda::log_softmax,
      .top_logprobs = cuda::top_logprobs,
      .fill_random = cuda::fill_random,
      .batch = &cuda::kBatchOps,
      .peer = &cuda::kPeerOps,
      .decodes_first = true,
  };
}

// By the compute capability's major number, for the variants' names.
constexpr KernelTable kTables[] = {make_table("sm_80"), make_table("sm_90"), make_table("sm_100"),
                                   make_table("sm_120")};

}  // namespace

const char* cuda_architectures() { return QUIRE_CUDA_ARCHITECTURES; }

const KernelTable* cuda_kernel_table(int32_t index) {
  CudaDevice device;
  return cuda_device(index, &device) ? cuda_kernel_table_for(device.compute_capability) : nullptr;
}

const KernelTable* cuda_kernel_table_for(int32_t compute_capability) {
  if (!cuda::runs_on(cuda_architectures(), compute_capability)) return nullptr;
  switch (compute_capability / 10) {
    case 8: return &kTables[0];
    case 9: return &kTables[1];
    case 10: return &kTables[2];
    case 12: return &kTables[3];
    default: return nullptr;
  }
}

}  // namespace quire
