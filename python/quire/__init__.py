"""Quire: a C++20 inference runtime for large language models."""

from quire._core import (
    CompletionOutput,
    KVArena,
    KVCacheEvent,
    KVCacheEventKind,
    Logprob,
    PauseMode,
    RequestMetrics,
    RequestOutput,
    RequestOutputKind,
    SamplingParams,
    Tokenizer,
)
from quire.llm import LLM
from quire.llm_engine import LLMEngine
from quire.model_directory import DEMO_MODEL

__all__ = [
    "DEMO_MODEL",
    "LLM",
    "CompletionOutput",
    "KVArena",
    "KVCacheEvent",
    "KVCacheEventKind",
    "LLMEngine",
    "Logprob",
    "PauseMode",
    "RequestMetrics",
    "RequestOutput",
    "RequestOutputKind",
    "SamplingParams",
    "Tokenizer",
]
