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
from quire.model_directory import DEMO_MODEL

__all__ = [
    "DEMO_MODEL",
    "LLM",
    "BatchUpdate",
    "BeamSearchOutput",
    "BeamSearchParams",
    "BeamSearchSequence",
    "ChatDelta",
    "ChatFormat",
    "ChatParser",
    "CompletionOutput",
    "EngineConfig",
    "KVArena",
    "KVCacheEvent",
    "KVCacheEventKind",
    "LLMEngine",
    "LogitsProcessor",
    "LogitsProcessorConfig",
    "Logprob",
    "MoveDirectionality",
    "PauseMode",
    "RequestMetrics",
    "RequestOutput",
    "RequestOutputKind",
    "RequestUsage",
    "SamplingParams",
    "StructuredOutputsParams",
    "Tokenizer",
    "ToolCallDelta",
    "__version__",
]

EngineConfig.__signature__ = SignatureOf(EngineConfig)
SamplingParams.__signature__ = SignatureOf(SamplingParams)
StructuredOutputsParams.__signature__ = SignatureOf(StructuredOutputsParams)

__version__: str

if not TYPE_CHECKING:

    def __getattr__(name: str) -> str:
        """The version, looked up only when it is asked for: reading package metadata takes milliseconds."""
        if name != "__version__":
            raise AttributeError(f"module 'quire' has no attribute '{name}'")
        from importlib.metadata import version

        return version("quire")
