"""The engines that compare_peers.py measures, each behind the same four calls."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from quire import LoRARequest


class Engine(Protocol):
    """One loaded model. Token ids in, seconds out; every call starts from an empty cache."""

    def prefill(self, prompt: list[int]) -> float:
        """Seconds from a prompt to its first token."""

    def decode(self, prompts: list[list[int]], num_tokens: int) -> float:
        """Seconds to generate num_tokens - 1 tokens for each prompt, after the first."""


class Quire:
    def __init__(self, model: Path, threads: int, **options: Any) -> None:
        from quire import LLMEngine

        self._engine = LLMEngine(
            model,
            skip_tokenizer_init=True,
            num_threads=threads,
            max_model_len=1024,
            max_num_seqs=8,
            enable_prefix_caching=False,
            **options,
        )
        self.description = f"{self._engine.model.dtype}, {self._engine.model.backend}"

    def add_lora(self, adapter: LoRARequest) -> None:
        self._engine.add_lora(adapter)

    def prefill(self, prompt: list[int], adapter: LoRARequest | None = None) -> float:
        return self._run([prompt], 1, [adapter])[0]

    def decode(
        self, prompts: list[list[int]], num_tokens: int, adapters: Sequence[LoRARequest | None] = ()
    ) -> float:
        first, total = self._run(prompts, num_tokens, adapters)
        return total - first

    def _run(
        self, prompts: list[list[int]], num_tokens: int, adapters: Sequence[LoRARequest | None]
    ) -> tuple[float, float]:
        from quire import SamplingParams

        params = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True, detokenize=False)
        start = time.perf_counter()
        for i, prompt in enumerate(prompts):
            self._engine.add_request(str(i), prompt, params, lora_request=adapters[i] if adapters else None)
        seen: set[str] = set()
        first = 0.0
        while self._engine.has_unfinished_requests():
            seen.update(output.request_id for output in self._engine.step())
            if not first and len(seen) == len(prompts):
                first = time.perf_counter() - start
        return first, time.perf_counter() - start


class Transformers:
    def __init__(self, model: Path, threads: int) -> None:
        import torch
        import transformers

        torch.set_num_threads(threads)
        self._torch = torch
        self._model: Any = transformers.AutoModelForCausalLM.from_pretrained(
            model, dtype=torch.bfloat16
        ).eval()
        self.description = f"bfloat16, transformers {transformers.__version__}, torch {torch.__version__}"

    def prefill(self, prompt: list[int]) -> float:
        return self._run([prompt], 1)[0]

    def decode(self, prompts: list[list[int]], num_tokens: int) -> float:
        first, total = self._run(prompts, num_tokens)
        return total - first

    def _run(self, prompts: list[list[int]], num_tokens: int) -> tuple[float, float]:
        torch = self._torch
        with torch.inference_mode():
            start = time.perf_counter()
            out = self._model(torch.tensor(prompts), use_cache=True, logits_to_keep=1)
            ids = out.logits[:, -1:].argmax(-1)
            first = time.perf_counter() - start
            for _ in range(num_tokens - 1):
                out = self._model(ids, past_key_values=out.past_key_values, use_cache=True)
                ids = out.logits[:, -1:].argmax(-1)
            return first, time.perf_counter() - start


class LlamaCpp:
    """llama.cpp through llama-cpp-python, driven at the level of its batches."""

    def __init__(self, model: Path, threads: int) -> None:
        import llama_cpp

        self._lib = llama_cpp
        llama_cpp.llama_backend_init()
        params = llama_cpp.llama_model_default_params()
        self._model = llama_cpp.llama_model_load_from_file(str(model).encode(), params)
        if not self._model:
            raise RuntimeError(f"llama.cpp cannot load {model}")
        context = llama_cpp.llama_context_default_params()
        context.n_ctx = 8 * 1024
        context.n_batch = context.n_ubatch = 512
        context.n_seq_max = 8
        context.n_threads = context.n_threads_batch = threads
        self._context = llama_cpp.llama_init_from_model(self._model, context)
        self._vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))
        self.description = f"bf16, llama-cpp-python {llama_cpp.__version__}"

    def prefill(self, prompt: list[int]) -> float:
        return self._run([prompt], 1)[0]

    def decode(self, prompts: list[list[int]], num_tokens: int) -> float:
        first, total = self._run(prompts, num_tokens)
        return total - first

    def _step(self, tokens: list[tuple[int, int, int, bool]]) -> list[int]:
        """Computes (token, position, sequence, wants logits); the likeliest next tokens."""
        lib = self._lib
        batch = lib.llama_batch_init(len(tokens), 0, 1)
        batch.n_tokens = len(tokens)
        for i, (token, position, sequence, wants_logits) in enumerate(tokens):
            batch.token[i] = token
            batch.pos[i] = position
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = sequence
            batch.logits[i] = wants_logits
        if lib.llama_decode(self._context, batch) != 0:
            raise RuntimeError("llama_decode failed")
        ids = []
        for i, (_, _, _, wants_logits) in enumerate(tokens):
            if wants_logits:
                logits = lib.llama_get_logits_ith(self._context, i)
                ids.append(int(np.ctypeslib.as_array(logits, (self._vocab_size,)).argmax()))
        lib.llama_batch_free(batch)
        return ids

    def _run(self, prompts: list[list[int]], num_tokens: int) -> tuple[float, float]:
        lib = self._lib
        lib.llama_memory_clear(lib.llama_get_memory(self._context), True)
        start = time.perf_counter()
        ids = []
        for sequence, prompt in enumerate(prompts):
            last = len(prompt) - 1
            ids += self._step([(t, i, sequence, i == last) for i, t in enumerate(prompt)])
        first = time.perf_counter() - start
        for step in range(num_tokens - 1):
            ids = self._step([(ids[s], len(p) + step, s, True) for s, p in enumerate(prompts)])
        return first, time.perf_counter() - start


ENGINES = {"quire": Quire, "transformers": Transformers, "llama_cpp": LlamaCpp}
