"""Names of vLLM 0.26's arguments that Quire has no field for: what it makes of each.

Arguments that are the same in both are in the tables of fields. What is here is renamed, or taken and without
effect where that changes no result, or refused with the reason and what would do. ``docs/from_vllm.md``
(tools/from_vllm.py) is made of this.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from quire.values import describe


@dataclass(frozen=True)
class Renamed:
    """Another name for the same."""

    name: str


@dataclass(frozen=True)
class NoEffect:
    """Taken, whatever its value; ``why`` it changes no result."""

    why: str


@dataclass(frozen=True)
class Refused:
    """Refused unless it is None or one of ``neutral``, which ask for nothing."""

    why: str  # and what would do
    neutral: tuple[Any, ...] = (False,)
    is_secret: bool = False  # what was given is not said


Made = Renamed | NoEffect | Refused

# Of EngineArgs, AsyncEngineArgs and LLM.
ENGINE_ARGS: dict[str, Made] = {
    "trust_remote_code": Refused(
        "no code of a checkpoint is run; architectures are built in, or come from plugins; leave it out"
    ),
    "code_revision": Refused("no code of a checkpoint is run; leave it out"),
    "hf_token": Refused(
        "set HF_TOKEN in the environment, or log in with `hf auth login`; leave it out",
        neutral=(False, True),
        is_secret=True,
    ),
    "hf_config_path": Refused("the model's directory has config.json: leave it out"),
    "tokenizer_mode": Refused(
        "tokenizer.json is read in one way; leave it out, or give 'auto'", neutral=("auto", "hf")
    ),
    "runner": Refused("models generate text; leave it out, or give 'auto'", neutral=("auto", "generate")),
    "convert": Refused("models generate text; leave it out, or give 'auto'", neutral=("auto", "none")),
    "pooler_config": Refused("nothing is pooled: models generate text"),
    "enable_prompt_embeds": Refused("prompts are text or token ids", neutral=(False, "", {}, [])),
    "enable_mm_embeds": Refused("prompts are text or token ids", neutral=(False, "", {}, [])),
    "interleave_mm_strings": Refused("prompts are text or token ids", neutral=(False, "", {}, [])),
    "allowed_local_media_path": Refused("prompts are text or token ids", neutral=(False, "", {}, [])),
    "allowed_media_domains": Refused("prompts are text or token ids", neutral=(False, "", {}, [])),
    "limit_mm_per_prompt": Refused("prompts are text or token ids", neutral=(False, "", {}, [])),
    "media_io_kwargs": Refused("prompts are text or token ids", neutral=(False, "", {}, [])),
    "mm_processor_kwargs": Refused("prompts are text or token ids", neutral=(False, "", {}, [])),
    "io_processor_plugin": Refused("prompts are text or token ids", neutral=(False, "", {}, [])),
    "mm_encoder_attn_backend": Refused("prompts are text or token ids", neutral=(False, "", {}, [])),
    "mm_encoder_attn_dtype": Refused("prompts are text or token ids", neutral=(False, "", {}, [])),
    "mm_encoder_fp8_scale_path": Refused("prompts are text or token ids", neutral=(False, "", {}, [])),
    "mm_encoder_fp8_scale_save_path": Refused("prompts are text or token ids", neutral=(False, "", {}, [])),
    "mm_encoder_only": Refused("prompts are text or token ids", neutral=(False, "", {}, [])),
    "language_model_only": NoEffect("prompts are text or token ids"),
    "mm_processor_cache_gb": NoEffect("prompts are text or token ids"),
    "mm_processor_cache_type": NoEffect("prompts are text or token ids"),
    "mm_shm_cache_max_object_size_mb": NoEffect("prompts are text or token ids"),
    "mm_encoder_tp_mode": NoEffect("prompts are text or token ids"),
    "mm_encoder_fp8_scale_save_margin": NoEffect("prompts are text or token ids"),
    "renderer_num_workers": NoEffect("prompts are text or token ids"),
    "skip_mm_profiling": NoEffect("prompts are text or token ids"),
    "video_pruning_rate": NoEffect("prompts are text or token ids"),
    "mm_tensor_ipc": NoEffect("prompts are text or token ids"),
    "mm_ipc_gpu_memory_gb": NoEffect("prompts are text or token ids"),
    "disable_chunked_mm_input": NoEffect("prompts are text or token ids"),
    "enable_mm_processor_stats": NoEffect("prompts are text or token ids"),
    "quantization": Refused(
        "weights are as the checkpoint has them: give one in compressed-tensors' int8, MXFP4 or GGUF, and "
        "leave it out",
        neutral=("compressed-tensors",),
    ),
    "quantization_config": Refused("weights are as the checkpoint has them; leave it out", neutral=({},)),
    "allow_deprecated_quantization": NoEffect("a quantization that is not known is refused by name"),
    "kv_cache_dtype": Refused(
        "keys and values have the model's dtype; leave it out, or give 'auto'", neutral=("auto",)
    ),
    "calculate_kv_scales": Refused("keys and values are not quantized; leave it out", neutral=(False, [])),
    "kv_cache_dtype_skip_layers": Refused(
        "keys and values are not quantized; leave it out", neutral=(False, [])
    ),
    "hf_overrides": Refused(
        "config.json is read as it is: change it there, in a copy of the model's directory", neutral=({},)
    ),
    "model_class_overrides": Refused(
        "config.json is read as it is: change it there, in a copy of the model's directory", neutral=({},)
    ),
    "override_attention_dtype": Refused(
        "config.json is read as it is: change it there, in a copy of the model's directory", neutral=({},)
    ),
    "config_format": Refused(
        "models are Hugging Face's directories; leave it out, or give 'auto'", neutral=("auto", "hf")
    ),
    "model_weights": Refused("the model's directory has the weights: leave it out", neutral=("",)),
    "model_impl": NoEffect("the architecture's own implementation is the only one"),
    "served_model_name": NoEffect(
        "it names a model to clients, which Triton's and HTTP's doors do by themselves"
    ),
    "safetensors_load_strategy": NoEffect("it is about the speed of loading"),
    "safetensors_prefetch_num_threads": NoEffect("it is about the speed of loading"),
    "safetensors_prefetch_block_size": NoEffect("it is about the speed of loading"),
    "max_parallel_loading_workers": NoEffect("it is about the speed of loading"),
    "pt_load_map_location": NoEffect("it is about the speed of loading"),
    "ignore_patterns": NoEffect("it is about the speed of loading"),
    "model_loader_extra_config": Refused(
        "there are no further loaders; load_format says how weights are read", neutral=({},)
    ),
    "cudagraph_capture_sizes": NoEffect(
        "graphs of steps are captured for the sizes that occur; enforce_eager is there"
    ),
    "max_cudagraph_capture_size": NoEffect(
        "graphs of steps are captured for the sizes that occur; enforce_eager is there"
    ),
    "compilation_config": NoEffect(
        "graphs of steps are captured for the sizes that occur; enforce_eager is there"
    ),
    "optimization_level": NoEffect(
        "graphs of steps are captured for the sizes that occur; enforce_eager is there"
    ),
    "performance_mode": NoEffect(
        "graphs of steps are captured for the sizes that occur; enforce_eager is there"
    ),
    "cudagraph_metrics": NoEffect(
        "graphs of steps are captured for the sizes that occur; enforce_eager is there"
    ),
    "ir_op_priority": NoEffect(
        "graphs of steps are captured for the sizes that occur; enforce_eager is there"
    ),
    "jit_monitor_mode": NoEffect(
        "graphs of steps are captured for the sizes that occur; enforce_eager is there"
    ),
    "jit_monitor_verbose": NoEffect(
        "graphs of steps are captured for the sizes that occur; enforce_eager is there"
    ),
    "attention_backend": NoEffect("kernels are chosen by the device"),
    "attention_config": NoEffect("kernels are chosen by the device"),
    "moe_backend": NoEffect("kernels are chosen by the device"),
    "linear_backend": NoEffect("kernels are chosen by the device"),
    "kernel_config": NoEffect("kernels are chosen by the device"),
    "enable_flashinfer_autotune": NoEffect("kernels are chosen by the device"),
    "enable_bf16x3_router_gemm": NoEffect("kernels are chosen by the device"),
    "gdn_prefill_backend": NoEffect("kernels are chosen by the device"),
    "disable_custom_all_reduce": NoEffect("kernels are chosen by the device"),
    "kv_sharing_fast_prefill": NoEffect("kernels are chosen by the device"),
    "use_fp64_gumbel": NoEffect("kernels are chosen by the device"),
    "distributed_executor_backend": Refused(
        "ranks are threads of one process; leave it out", neutral=("mp", "uni")
    ),
    "pipeline_parallel_size": Refused(
        "layers are split with tensor_parallel_size, within one machine", neutral=(1,)
    ),
    "prefill_context_parallel_size": Refused(
        "layers are split with tensor_parallel_size, within one machine", neutral=(1,)
    ),
    "decode_context_parallel_size": Refused(
        "layers are split with tensor_parallel_size, within one machine", neutral=(1,)
    ),
    "nnodes": Refused("layers are split with tensor_parallel_size, within one machine", neutral=(1,)),
    "data_parallel_size": Refused(
        "one engine is one replica: start several, and share requests out before them", neutral=(1,)
    ),
    "data_parallel_rank": Refused(
        "one engine is one replica: start several, and share requests out before them", neutral=(False, 0, 1)
    ),
    "data_parallel_start_rank": Refused(
        "one engine is one replica: start several, and share requests out before them", neutral=(False, 0, 1)
    ),
    "data_parallel_size_local": Refused(
        "one engine is one replica: start several, and share requests out before them", neutral=(False, 0, 1)
    ),
    "data_parallel_hybrid_lb": Refused(
        "one engine is one replica: start several, and share requests out before them", neutral=(False, 0, 1)
    ),
    "data_parallel_external_lb": Refused(
        "one engine is one replica: start several, and share requests out before them", neutral=(False, 0, 1)
    ),
    "data_parallel_multi_port_external_lb": Refused(
        "one engine is one replica: start several, and share requests out before them", neutral=(False, 0, 1)
    ),
    "enable_elastic_ep": Refused(
        "one engine is one replica: start several, and share requests out before them", neutral=(False, 0, 1)
    ),
    "data_parallel_address": NoEffect("there is one process, and no further replicas"),
    "data_parallel_rpc_port": NoEffect("there is one process, and no further replicas"),
    "data_parallel_backend": NoEffect("there is one process, and no further replicas"),
    "master_addr": NoEffect("there is one process, and no further replicas"),
    "master_port": NoEffect("there is one process, and no further replicas"),
    "distributed_timeout_seconds": NoEffect("there is one process, and no further replicas"),
    "cpu_distributed_timeout_seconds": NoEffect("there is one process, and no further replicas"),
    "disable_nccl_for_dp_synchronization": NoEffect("there is one process, and no further replicas"),
    "dcp_comm_backend": NoEffect("there is one process, and no further replicas"),
    "dcp_kv_cache_interleave_size": NoEffect("there is one process, and no further replicas"),
    "cp_kv_cache_interleave_size": NoEffect("there is one process, and no further replicas"),
    "ray_workers_use_nsight": NoEffect("there is one process, and no further replicas"),
    "node_rank": NoEffect("there is one process, and no further replicas"),
    "enable_expert_parallel": Refused("tensor_parallel_size splits every expert; leave it out"),
    "enable_ep_weight_filter": Refused("tensor_parallel_size splits every expert; leave it out"),
    "enable_eplb": Refused("tensor_parallel_size splits every expert; leave it out"),
    "enable_return_routed_experts": Refused(
        "which experts a token went to is not returned; expert_loads() counts the tokens of each"
    ),
    "enable_dbo": Refused("a step is not split into two; leave it out"),
    "all2all_backend": NoEffect("tensor_parallel_size splits every expert"),
    "eplb_config": NoEffect("tensor_parallel_size splits every expert"),
    "expert_placement_strategy": NoEffect("tensor_parallel_size splits every expert"),
    "ubatch_size": NoEffect("a step is not split into two"),
    "dbo_decode_token_threshold": NoEffect("a step is not split into two"),
    "dbo_prefill_token_threshold": NoEffect("a step is not split into two"),
    "device_ids": Refused("device says the first one: 'cuda:N'"),
    "numa_bind": Refused("the process's own affinity counts: use numactl or taskset", neutral=(False, [])),
    "numa_bind_nodes": Refused(
        "the process's own affinity counts: use numactl or taskset", neutral=(False, [])
    ),
    "numa_bind_cpus": Refused(
        "the process's own affinity counts: use numactl or taskset", neutral=(False, [])
    ),
    "prefix_caching_hash_algo": NoEffect("names of cached prefixes are always keyed SHA-256"),
    "disable_sliding_window": Refused("sliding windows are the model's own; leave it out"),
    "disable_hybrid_kv_cache_manager": NoEffect("layers of a kind always have blocks of their own"),
    "cpu_offload_gb": Refused("weights stay where they are computed with; leave it out", neutral=(0, 0.0)),
    "offload_group_size": Refused(
        "weights stay where they are computed with; leave it out", neutral=(0, 0.0)
    ),
    "offload_backend": NoEffect("weights stay where they are computed with"),
    "cpu_offload_params": NoEffect("weights stay where they are computed with"),
    "offload_num_in_group": NoEffect("weights stay where they are computed with"),
    "offload_prefetch_step": NoEffect("weights stay where they are computed with"),
    "offload_params": NoEffect("weights stay where they are computed with"),
    "kv_offloading_size": Refused("keys and values go elsewhere through kv_connector"),
    "kv_transfer_config": Refused("keys and values go elsewhere through kv_connector"),
    "ec_transfer_config": Refused("keys and values go elsewhere through kv_connector"),
    "kv_offloading_backend": NoEffect("keys and values go elsewhere through kv_connector"),
    "kv_events_config": Refused("give enable_kv_cache_events=True, and take them with take_kv_events()"),
    "max_num_scheduled_tokens": Refused("give max_num_batched_tokens"),
    "logprobs_mode": Refused(
        "log-probabilities are those before any processing; leave it out, or give 'raw_logprobs'",
        neutral=("raw_logprobs",),
    ),
    "disable_log_stats": NoEffect("statistics are there when they are asked for: stats(), metric sinks"),
    "aggregate_engine_logging": NoEffect(
        "statistics are there when they are asked for: stats(), metric sinks"
    ),
    "show_hidden_metrics_for_version": NoEffect(
        "statistics are there when they are asked for: stats(), metric sinks"
    ),
    "kv_cache_metrics": NoEffect("statistics are there when they are asked for: stats(), metric sinks"),
    "kv_cache_metrics_sample": NoEffect(
        "statistics are there when they are asked for: stats(), metric sinks"
    ),
    "enable_mfu_metrics": NoEffect("statistics are there when they are asked for: stats(), metric sinks"),
    "enable_logging_iteration_details": NoEffect(
        "statistics are there when they are asked for: stats(), metric sinks"
    ),
    "enable_layerwise_nvtx_tracing": NoEffect(
        "statistics are there when they are asked for: stats(), metric sinks"
    ),
    "enable_log_requests": NoEffect("statistics are there when they are asked for: stats(), metric sinks"),
    "otlp_traces_endpoint": Refused(
        "spans are a server's: `quire serve` has this flag, and RequestTracer is for others", neutral=({},)
    ),
    "collect_detailed_traces": Refused(
        "a flight recorder's file becomes a timeline with `quire trace`", neutral=({},)
    ),
    "profiler_config": Refused(
        "a flight recorder's file becomes a timeline with `quire trace`", neutral=({},)
    ),
    "default_mm_loras": Refused(
        "prompts are text or token ids; name an adapter for each request", neutral=({},)
    ),
    "enable_tower_connector_lora": Refused("prompts are text or token ids", neutral=(False,)),
    "enable_mixed_moe_lora_format": NoEffect("an adapter's file says which form it has of experts"),
    "enable_moe_shared_loras": Refused("each expert has matrices of its own", neutral=(False,)),
    "fully_sharded_loras": NoEffect("each rank has the share of an adapter that its linears need"),
    "lora_dtype": Refused("adapters are computed in the model's dtype", neutral=("auto",)),
    "lora_target_modules": Refused("an adapter's own modules count", neutral=([],)),
    "specialize_active_lora": NoEffect("nothing is captured for a number of adapters"),
    "speculative_config": Refused("no draft model is read; leave it out", neutral=({},)),
    "spec_method": Refused("no draft model is read; leave it out", neutral=({},)),
    "spec_model": Refused("no draft model is read; leave it out", neutral=({},)),
    "spec_tokens": Refused("no draft model is read; leave it out", neutral=({},)),
    "diffusion_config": Refused("no model here writes by diffusion; leave it out", neutral=({},)),
    "scheduler_cls": Refused("the scheduler is built in; scheduling_policy changes its order"),
    "prefill_schedule_interval": NoEffect("prompts are taken into a step whenever there is room"),
    "worker_cls": Refused(
        "there is one kind of worker; a logits processor or a connector is the place for code of yours",
        neutral=("auto", ""),
    ),
    "worker_extension_cls": Refused(
        "there is one kind of worker; a logits processor or a connector is the place for code of yours",
        neutral=("auto", ""),
    ),
    "structured_outputs_config": Refused(
        "give enable_in_reasoning and max_structured_output_bytes as arguments of their own", neutral=({},)
    ),
    "reasoning_parser": Refused(
        "ChatParser and LLM.chat take a parser; to the engine, think_end_token_ids say it", neutral=("", {})
    ),
    "reasoning_parser_plugin": Refused(
        "ChatParser and LLM.chat take a parser; to the engine, think_end_token_ids say it", neutral=("", {})
    ),
    "reasoning_config": Refused(
        "ChatParser and LLM.chat take a parser; to the engine, think_end_token_ids say it", neutral=("", {})
    ),
    "mamba_config": Refused("no architecture here has such layers", neutral=({},)),
    "mamba_cache_dtype": NoEffect("no architecture here has such layers"),
    "mamba_ssm_cache_dtype": NoEffect("no architecture here has such layers"),
    "mamba_block_size": NoEffect("no architecture here has such layers"),
    "mamba_cache_mode": NoEffect("no architecture here has such layers"),
    "mamba_backend": NoEffect("no architecture here has such layers"),
    "enable_mamba_cache_stochastic_rounding": NoEffect("no architecture here has such layers"),
    "mamba_cache_philox_rounds": NoEffect("no architecture here has such layers"),
    "prefix_match_unit": NoEffect("no architecture here has such layers"),
    "enable_sleep_mode": NoEffect("sleep() and wake_up() are always there"),
    "enable_cumem_allocator": NoEffect("sleep() gives memory back without it"),
    "additional_config": Refused("there are no platform plugins to pass it to; leave it out", neutral=({},)),
    "stream_interval": NoEffect("outputs come whenever there is one"),
    "tokens_only": NoEffect("skip_tokenizer_init is what it is for"),
    "shutdown_timeout": NoEffect("drain(timeout) says how long"),
    "weight_transfer_config": Refused(
        "update_weights() takes a directory or tensors, from whatever brings them; leave it out"
    ),
    "fail_on_environ_validation": NoEffect("the environment is checked by the command line"),
    "chat_template": Refused(
        "pass chat_template to LLM.chat, or put chat_template.jinja into the model's directory"
    ),
    "_api_process_count": NoEffect("it is vLLM's own"),
    "_api_process_rank": NoEffect("it is vLLM's own"),
}

# Of SamplingParams.
SAMPLING_PARAMS: dict[str, Made] = {
    "thinking_token_budget": Renamed("max_thinking_tokens"),
    "flat_logprobs": Refused("log-probabilities come as a dict for each position; leave it out"),
    "skip_clone": NoEffect("parameters are never changed after they were given"),
    "output_text_buffer_length": NoEffect("it is worked out of stop"),
    "routed_experts_prompt_start": Refused(
        "which experts a token went to is not returned; expert_loads() counts the tokens of each",
        neutral=(0,),
    ),
    "skip_reading_prefix_cache": Refused("give a cache_salt that no other request has"),
    "repetition_detection": Refused("give repetition_penalty or frequency_penalty, or stop"),
}

STRUCTURED_OUTPUTS: dict[str, Made] = {
    "disable_additional_properties": Refused('write "additionalProperties": false into the schema'),
    "whitespace_pattern": Refused("give disable_any_whitespace"),
}

# Of LLM.generate and LLM.chat.
REQUEST_ARGUMENTS: dict[str, Made] = {
    "tokenization_kwargs": Refused(
        "give add_special_tokens, or truncate_prompt_tokens in SamplingParams", neutral=({},)
    ),
    "mm_processor_kwargs": Refused("prompts are text or token ids", neutral=({},)),
}

BEAM_SEARCH_ARGUMENTS: dict[str, Made] = {
    "concurrency_limit": NoEffect("searches wait for their turn by themselves"),
}

OWNERS: dict[str, dict[str, Made]] = {
    "EngineConfig": ENGINE_ARGS,
    "SamplingParams": SAMPLING_PARAMS,
    "StructuredOutputsParams": STRUCTURED_OUTPUTS,
    "structured_outputs": STRUCTURED_OUTPUTS,
    "LLM.generate": REQUEST_ARGUMENTS,
    "LLM.chat": REQUEST_ARGUMENTS,
    "LLM.beam_search": BEAM_SEARCH_ARGUMENTS,
}


def find_name(owner: str, name: str, value: Any) -> str | None:
    """The name of ours for one that ``owner`` does not have; None if it is to be dropped.

    A name that vLLM does not have either comes back as it is. Raises ValueError with the reason for what is
    refused. Called by the extension too.
    """
    made = OWNERS.get(owner, {}).get(name)
    if made is None:
        return name
    if isinstance(made, Renamed):
        return made.name
    if isinstance(made, Refused) and value is not None:
        asks_for_nothing = any(type(value) is type(other) and value == other for other in made.neutral)
        if not asks_for_nothing:
            got = "" if made.is_secret else f", got {describe(value)}"
            raise ValueError(f"{name} is not supported{got}: {made.why}")
    return None
