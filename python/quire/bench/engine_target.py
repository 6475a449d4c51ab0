"""An engine in this process: what a server adds is left out."""

from __future__ import annotations

import json
import time
from typing import Any

from quire._core import RequestOutputKind, SamplingParams, StructuredOutputsParams
from quire.async_llm import AsyncLLM
from quire.bench.outcomes import BenchRequest, Outcome
from quire.bench.targets import TargetConfig, sampling_of

_monotonic = time.monotonic


def make_sampling_params(request: BenchRequest, config: TargetConfig) -> SamplingParams:
    """What a request asks for, as an engine takes it. Raises ValueError or TypeError naming the field."""
    fields = sampling_of(request, config.sampling) | dict(config.extra_body)
    if request.schema is not None:
        fields["structured_outputs"] = StructuredOutputsParams(json=json.dumps(request.schema))
    return SamplingParams(output_kind=RequestOutputKind.DELTA, **fields)


class EngineTarget:
    """``AsyncLLM``, whose event loop is the caller's."""

    def __init__(self, llm: AsyncLLM, config: TargetConfig) -> None:
        self._llm = llm
        self._config = config

    def prepare(self, request: BenchRequest) -> tuple[BenchRequest, SamplingParams]:
        return request, make_sampling_params(request, self._config)

    async def send(self, prepared: tuple[BenchRequest, SamplingParams], outcome: Outcome) -> None:
        request, params = prepared
        keep_text = self._config.keep_text
        outcome.start = _monotonic()
        times = outcome.times
        num_tokens = 0
        try:
            output: Any = None
            async for output in self._llm.generate(request.prompt, params):
                completion = output.outputs[0]
                new = len(completion.token_ids)
                if new:
                    times.append(_monotonic())
                    num_tokens += new
                    if keep_text:
                        outcome.text += completion.text
            if output.outputs[0].finish_reason not in ("stop", "length"):
                outcome.error = output.outputs[0].error or f"ended by {output.outputs[0].finish_reason}"
            elif not times:
                outcome.error = "the answer has no tokens"
            outcome.prompt_tokens = output.usage.num_prompt_tokens
        except (ValueError, MemoryError, RuntimeError) as error:
            outcome.error = str(error)
        outcome.output_tokens = num_tokens

    async def close(self) -> None:
        await self._llm.shutdown()
