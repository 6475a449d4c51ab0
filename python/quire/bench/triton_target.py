"""A Triton server's decoupled model by gRPC: a stream for each request, on one channel."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

from quire.bench.outcomes import BenchRequest, Outcome
from quire.bench.targets import TargetConfig, sampling_of

try:
    import numpy as np
    import tritonclient.grpc.aio as grpc_aio
except ImportError as error:
    raise ValueError(f"{error.name} is not installed; pip install 'tritonclient[grpc]'") from None

_monotonic = time.monotonic


class TritonTarget:
    """Of one event loop."""

    def __init__(self, config: TargetConfig) -> None:
        self._config = config
        self._client: Any = None

    def prepare(self, request: BenchRequest) -> list[Any]:
        sampling = sampling_of(request, self._config.sampling) | dict(self._config.extra_body)
        inputs = [
            _tensor("stream", np.array([True]), "BOOL"),
            _tensor("sampling_parameters", _text(json.dumps(sampling)), "BYTES"),
            _tensor("exclude_input_in_output", np.array([True]), "BOOL"),
            _tensor("return_num_output_tokens", np.array([True]), "BOOL"),
        ]
        if isinstance(request.prompt, str):
            return [*inputs, _tensor("text_input", _text(request.prompt), "BYTES")]
        ids = np.array(request.prompt, dtype=np.int32)
        return [*inputs, _tensor("input_ids", ids, "INT32")]

    async def send(self, prepared: list[Any], outcome: Outcome) -> None:
        asked = {
            "model_name": self._config.model,
            "inputs": prepared,
            "outputs": [
                grpc_aio.InferRequestedOutput(name)
                for name in ("text_output", "num_output_tokens", "finish_reason")
            ],
        }

        async def requests() -> AsyncIterator[dict[str, Any]]:
            yield asked

        outcome.start = _monotonic()
        try:
            if self._client is None:
                self._client = grpc_aio.InferenceServerClient(self._config.url)
            await asyncio.wait_for(self._read(requests(), outcome), self._config.timeout_s)
        except asyncio.CancelledError:
            raise
        except asyncio.TimeoutError:
            outcome.error = f"no end of the answer within {self._config.timeout_s:g} s"
        except Exception as error:  # of tritonclient and of grpc, which have no common base
            outcome.error = str(error)[:300] or type(error).__name__
        if not outcome.error and not outcome.times:
            outcome.error = "the answer has no tokens"

    async def _read(self, requests: AsyncIterator[dict[str, Any]], outcome: Outcome) -> None:
        """Reads to the end of the stream: leaving it before would cancel it in the server."""
        is_final = False
        headers = dict(self._config.headers) or None
        async for result, error in self._client.stream_infer(requests, headers=headers):
            if error is not None:
                outcome.error = outcome.error or str(error)[:300]
                continue
            num_tokens = result.as_numpy("num_output_tokens")
            new = 0 if num_tokens is None or num_tokens.size == 0 else int(num_tokens.sum())
            if new:
                outcome.times.append(_monotonic())
                outcome.output_tokens += new
            if self._config.keep_text and (text := result.as_numpy("text_output")) is not None:
                outcome.text += "".join(piece.decode(errors="replace") for piece in text.reshape(-1))
            if result.get_response().parameters["triton_final_response"].bool_param:
                is_final = True
                reason = result.as_numpy("finish_reason")
                if reason is not None and reason.size and reason[0] not in (b"stop", b"length"):
                    outcome.error = f"ended by {reason[0].decode()}"
        if not is_final:
            outcome.error = outcome.error or "the stream ended before the final response"

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()


def _text(text: str) -> Any:
    return np.array([text.encode()], dtype=np.object_)


def _tensor(name: str, array: Any, kind: str) -> Any:
    tensor = grpc_aio.InferInput(name, list(array.shape), kind)
    tensor.set_data_from_numpy(array)
    return tensor
