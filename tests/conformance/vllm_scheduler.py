"""vLLM's own Scheduler, made without a device or a model, for what compares itself with it.

Runs inside the environment that ``setup_vllm.sh`` makes.
"""

import copy
import importlib
import json
import os
import tempfile
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

EOS_TOKEN_ID = 0


@dataclass(frozen=True)
class TraceConfig:
    """The engine of one trace. ``num_blocks`` counts block 0, which is never handed out."""

    num_blocks: int
    block_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    long_prefill_token_threshold: int = 0
    enable_chunked_prefill: bool = True
    enable_prefix_caching: bool = True
    policy: str = "fcfs"
    async_scheduling: bool = False
    num_speculative_tokens: int = 0
    sliding_window: int = 0
    max_loras: int = 0  # 0: no request has an adapter

    @staticmethod
    def from_json(values: dict[str, Any]) -> "TraceConfig":
        unknown = set(values) - {f.name for f in fields(TraceConfig)}
        if unknown:
            raise ValueError(f"unknown config fields: {sorted(unknown)}")
        config = TraceConfig(**values)
        if config.async_scheduling and config.num_speculative_tokens > 0:
            # There the worker fills in the drafts of a step that is already scheduled.
            raise ValueError("speculative tokens are replayed in synchronous mode only")
        return config


class Vllm:
    """vLLM's modules, imported once, and schedulers made from one template configuration."""

    def __init__(self) -> None:
        os.environ.update(
            # The newer model runner reports resumed requests as new ones; scheduling is the same.
            VLLM_USE_V2_MODEL_RUNNER="0",
            VLLM_NO_USAGE_STATS="1",
            VLLM_LOGGING_LEVEL="ERROR",
            HF_HUB_OFFLINE="1",
            CUDA_VISIBLE_DEVICES="",
        )
        # Chosen before anything asks for it: detection would find no device, and the CUDA platform
        # would load a driver that is not there. Nothing below computes, so any platform will do.
        platforms: Any = importlib.import_module("vllm.platforms")
        platforms._current_platform = self._module("platforms.cpu").CpuPlatform()

        kv_interface = self._module("v1.kv_cache_interface")
        kv_utils = self._module("v1.core.kv_cache_utils")
        request_module = self._module("v1.request")
        outputs = self._module("v1.outputs")
        self._scheduler_cls = self._module("v1.core.sched.scheduler").Scheduler
        self._async_scheduler_cls = self._module("v1.core.sched.async_scheduler").AsyncScheduler
        self._kv_interface = kv_interface
        self._kv_utils = kv_utils
        self._sha256 = self._module("utils.hashing").sha256
        self._sampling_params_cls = self._module("sampling_params").SamplingParams
        self._request_cls = request_module.Request
        self._lora_request_cls = self._module("lora.request").LoRARequest
        self._lora_config_cls = self._module("config.lora").LoRAConfig
        self.aborted_status: Any = request_module.RequestStatus.FINISHED_ABORTED
        self.model_runner_output_cls: Any = outputs.ModelRunnerOutput
        self.draft_token_ids_cls: Any = outputs.DraftTokenIds
        self._dtype = importlib.import_module("torch").float16
        self._templates = {False: self._engine_config(False), True: self._engine_config(True)}
        kv_utils.init_none_hash(self._sha256)
        self._module("v1.core.single_type_kv_cache_manager").register_all_kvcache_specs(
            self._templates[False]
        )
        self._structured_output_manager = self._module("v1.structured_output").StructuredOutputManager(
            self._templates[False]
        )

    @staticmethod
    def _module(name: str) -> Any:
        return importlib.import_module(f"vllm.{name}")

    def _engine_config(self, speculative: bool) -> Any:
        # A real configuration, so that every field that a trace does not set has vLLM's default.
        engine_args_cls = self._module("engine.arg_utils").EngineArgs
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "config.json").write_text(
                json.dumps(
                    {
                        "architectures": ["LlamaForCausalLM"],
                        "model_type": "llama",
                        "hidden_size": 64,
                        "intermediate_size": 128,
                        "num_hidden_layers": 1,
                        "num_attention_heads": 4,
                        "num_key_value_heads": 4,
                        "vocab_size": 1000,
                        "max_position_embeddings": 1 << 20,
                        "torch_dtype": "bfloat16",
                        "bos_token_id": 1,
                        "eos_token_id": EOS_TOKEN_ID,
                    }
                )
            )
            return engine_args_cls(
                model=folder,
                load_format="dummy",
                skip_tokenizer_init=True,
                enforce_eager=True,
                async_scheduling=False,
                max_model_len=1 << 20,
                max_num_seqs=16,
                max_num_batched_tokens=64,
                # n-gram drafting needs neither a draft model nor lookahead slots.
                speculative_config={"method": "ngram", "num_speculative_tokens": 1, "prompt_lookup_max": 2}
                if speculative
                else None,
            ).create_engine_config()

    def make_scheduler(self, config: TraceConfig) -> Any:
        # Shallow copies with fields set afterwards: no validation, so block sizes below 16 pass too.
        vllm_config = copy.copy(self._templates[config.num_speculative_tokens > 0])
        if config.num_speculative_tokens > 0:
            vllm_config.speculative_config = copy.copy(vllm_config.speculative_config)
            vllm_config.speculative_config.num_speculative_tokens = config.num_speculative_tokens
        vllm_config.model_config = copy.copy(vllm_config.model_config)
        vllm_config.model_config.max_model_len = config.max_model_len
        scheduler_config = copy.copy(vllm_config.scheduler_config)
        scheduler_config.max_num_seqs = config.max_num_seqs
        scheduler_config.max_num_batched_tokens = config.max_num_batched_tokens
        scheduler_config.max_num_scheduled_tokens = None
        scheduler_config.long_prefill_token_threshold = config.long_prefill_token_threshold
        scheduler_config.enable_chunked_prefill = config.enable_chunked_prefill
        scheduler_config.policy = config.policy
        scheduler_config.async_scheduling = config.async_scheduling
        vllm_config.scheduler_config = scheduler_config
        if config.max_loras > 0:
            vllm_config.lora_config = self._lora_config_cls(max_loras=config.max_loras)
        cache_config = copy.copy(vllm_config.cache_config)
        cache_config.block_size = config.block_size
        cache_config.num_gpu_blocks = config.num_blocks
        cache_config.enable_prefix_caching = config.enable_prefix_caching
        vllm_config.cache_config = cache_config
        shape = {
            "block_size": config.block_size,
            "num_kv_heads": 1,
            "head_size": 16,
            "dtype": self._dtype,
        }
        spec = (
            self._kv_interface.SlidingWindowSpec(sliding_window=config.sliding_window, **shape)
            if config.sliding_window > 0
            else self._kv_interface.FullAttentionSpec(**shape)
        )
        kv_cache_config = self._kv_interface.KVCacheConfig(
            num_blocks=config.num_blocks,
            kv_cache_tensors=[],
            kv_cache_groups=[self._kv_interface.KVCacheGroupSpec(["layer"], spec)],
        )
        cls = self._async_scheduler_cls if config.async_scheduling else self._scheduler_cls
        return cls(
            vllm_config=vllm_config,
            kv_cache_config=kv_cache_config,
            structured_output_manager=self._structured_output_manager,
            block_size=config.block_size,
        )

    def make_block_hasher(self, config: TraceConfig) -> Any:
        """Returns what each request hashes its blocks with, or None when nothing is cached."""
        if not config.enable_prefix_caching:
            return None
        return self._kv_utils.get_request_block_hasher(config.block_size, self._sha256)

    def make_sampling_params(self, max_tokens: int) -> Any:
        sampling_params = self._sampling_params_cls(max_tokens=max_tokens)
        sampling_params.update_from_generation_config({}, EOS_TOKEN_ID)
        return sampling_params

    def make_request(
        self,
        request_id: str,
        prompt: list[int],
        sampling_params: Any,
        *,
        block_hasher: Any,
        arrival_time: float,
        priority: int = 0,
        cache_salt: str = "",
        lora: int = 0,
    ) -> Any:
        return self._request_cls(
            request_id=request_id,
            prompt_token_ids=prompt,
            sampling_params=sampling_params,
            pooling_params=None,
            arrival_time=arrival_time,
            cache_salt=cache_salt or None,
            priority=priority,
            lora_request=self._lora_request_cls(f"lora {lora}", lora, "/none") if lora else None,
            block_hasher=block_hasher,
        )
