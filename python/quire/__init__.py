"""Quire: a C++20 inference runtime for large language models."""

from typing import TYPE_CHECKING

from quire._core import (
    ChatDelta,
    ChatFormat,
    ChatParser,
    CompletionOutput,
    EngineConfig,
    KVArena,
    KVCacheEvent,
    KVCacheEventKind,
    LogitsProcessorConfig,
    Logprob,
    PauseMode,
    PrometheusFamily,
    PrometheusMetrics,
    RequestMetrics,
    RequestOutput,
    RequestOutputKind,
    RequestUsage,
    SamplingParams,
    StructuredOutputsParams,
    Tokenizer,
    ToolCallDelta,
)
from quire.arguments import SignatureOf
from quire.beam_search import BeamSearchOutput, BeamSearchParams, BeamSearchSequence
from quire.llm import LLM
from quire.llm_engine import LLMEngine
from quire.logits_processors import BatchUpdate, LogitsProcessor, MoveDirectionality
from quire.lora import LoRAInfo, LoRARequest
from quire.model_directory import DEMO_MODEL
from quire.plugins import ModelRegistry, load_plugin

__all__ = [
    "DEMO_MODEL",
    "LLM",
    "AsyncEngineArgs",
    "AsyncLLM",
    "BatchUpdate",
    "BeamSearchOutput",
    "BeamSearchParams",
    "BeamSearchSequence",
    "ChatDelta",
    "ChatFormat",
    "ChatParser",
    "CompletionOutput",
    "EngineArgs",
    "EngineConfig",
    "KVArena",
    "KVCacheEvent",
    "KVCacheEventKind",
    "LLMEngine",
    "LoRAInfo",
    "LoRARequest",
    "LogitsProcessor",
    "LogitsProcessorConfig",
    "Logprob",
    "ModelRegistry",
    "MoveDirectionality",
    "PauseMode",
    "PrometheusFamily",
    "PrometheusMetrics",
    "RequestMetrics",
    "RequestOutput",
    "RequestOutputKind",
    "RequestUsage",
    "SamplingParams",
    "StructuredOutputsParams",
    "Tokenizer",
    "ToolCallDelta",
    "__version__",
    "collect_env",
    "export",
    "load_plugin",
    "pack_weights",
    "plan",
]

EngineConfig.__signature__ = SignatureOf(EngineConfig)
SamplingParams.__signature__ = SignatureOf(SamplingParams)
StructuredOutputsParams.__signature__ = SignatureOf(StructuredOutputsParams)

__version__: str

if TYPE_CHECKING:
    from quire.async_llm import AsyncLLM as AsyncLLM
    from quire.engine_args import AsyncEngineArgs as AsyncEngineArgs
    from quire.engine_args import EngineArgs as EngineArgs
    from quire.environment import collect_env as collect_env
    from quire.memory_plan import plan as plan
    from quire.packing import pack_weights as pack_weights
    from quire.torch_export.exporter import export as export
else:

    def __getattr__(name: str) -> object:
        """What is seldom asked for and takes milliseconds, as reading the package's metadata does."""
        if name == "__version__":
            from importlib.metadata import version

            return version("quire")
        if name == "AsyncLLM":
            from quire.async_llm import AsyncLLM

            return AsyncLLM
        if name in ("AsyncEngineArgs", "EngineArgs"):
            from quire import engine_args

            return getattr(engine_args, name)
        if name == "collect_env":
            from quire.environment import collect_env

            return collect_env
        if name == "plan":
            from quire.memory_plan import plan

            return plan
        if name == "pack_weights":
            from quire.packing import pack_weights

            return pack_weights
        if name == "export":
            from quire.torch_export.exporter import export

            return export
        raise AttributeError(f"module 'quire' has no attribute '{name}'")
