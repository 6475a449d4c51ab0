"""What clients of Triton's vLLM backend send, answered the same way."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc.aio as grpc_aio
from pieces import in_pieces
from triton_requests import Response, stream_infer
from triton_server import TritonServer

# Numbers as strings, and the same fields twice: as a tensor and as request parameters.
SAMPLING = {"temperature": "0.1", "top_p": "0.95", "max_tokens": "30"}
PROMPTS = ["Hello, my name is\n", "The capital of the island is\n", "The future is\n"]


def vllm_request(model: str, prompt: str, stream: bool, request_id: str) -> dict[str, Any]:
    text = grpc_aio.InferInput("text_input", [1], "BYTES")
    text.set_data_from_numpy(np.array([prompt.encode()], dtype=np.object_))
    streaming = grpc_aio.InferInput("stream", [1], "BOOL")
    streaming.set_data_from_numpy(np.array([stream], dtype=bool))
    sampling = grpc_aio.InferInput("sampling_parameters", [1], "BYTES")
    sampling.set_data_from_numpy(np.array([json.dumps(SAMPLING).encode()], dtype=np.object_))
    return {
        "model_name": model,
        "inputs": [text, streaming, sampling],
        "outputs": [grpc_aio.InferRequestedOutput("text_output")],
        "request_id": request_id,
        "parameters": SAMPLING,
    }


async def vllm_client(address: str, stream: bool) -> dict[str, list[str]]:
    """All prompts on one stream; what each request's responses held."""
    results: dict[str, list[str]] = {str(i): [] for i in range(len(PROMPTS))}

    async def requests() -> AsyncIterator[dict[str, Any]]:
        for i, prompt in enumerate(PROMPTS):
            yield vllm_request("demo", prompt, stream, str(i))

    async with grpc_aio.InferenceServerClient(address) as client:
        async for result, error in client.stream_infer(requests(), stream_timeout=30):
            assert error is None, error
            for piece in result.as_numpy("text_output"):
                results[result.get_response().id].append(piece.decode())
    return results


@pytest.mark.parametrize("stream", [False, True])
def test_its_sample_client_is_served(server: TritonServer, stream: bool) -> None:
    for i, prompt in enumerate(PROMPTS):

        def ask(i: int = i) -> list[str]:
            return asyncio.run(vllm_client(server.grpc_address, stream))[str(i)]

        pieces = in_pieces(ask) if stream else ask()
        assert stream or len(pieces) == 1
        assert "".join(pieces).startswith(prompt) == (not stream)
        assert "".join(pieces).strip()


def test_its_additional_outputs_are_there(server: TritonServer) -> None:
    answer = server.generate(
        "demo",
        text_input="Hello",
        parameters={"stream": False, "temperature": 0, "max_tokens": 4},
        return_finish_reason=True,
        return_cumulative_logprob=True,
        return_num_input_tokens=True,
        return_num_output_tokens=True,
    )
    assert answer["finish_reason"] == "length"
    assert answer["cumulative_logprob"] < 0
    assert answer["num_output_tokens"] == 4
    assert answer["num_input_tokens"] >= 1


def test_a_stream_without_text_excluded_is_refused_as_there(server: TritonServer) -> None:
    parameters = {"stream": True, "exclude_input_in_output": False}
    answer = server.request(
        "v2/models/demo/generate_stream", {"text_input": "Hello", "parameters": parameters}
    )
    assert answer.status == 400


# What Triton's OpenAI front end of 24.10 makes of a request that says little: its schema's defaults.
OPENAI_CHAT = {
    "frequency_penalty": 0,
    "logprobs": False,
    "n": 1,
    "presence_penalty": 0,
    "temperature": 1.0,
    "top_p": 1.0,
}
OPENAI_COMPLETION = {
    "best_of": 1,
    "frequency_penalty": 0,
    "n": 1,
    "presence_penalty": 0,
    "temperature": 1.0,
    "top_p": 1.0,
}


@pytest.mark.parametrize("sampling", [OPENAI_CHAT, OPENAI_COMPLETION], ids=["chat", "completion"])
@pytest.mark.parametrize("stream", [False, True])
def test_the_openai_front_end_is_served(server: TritonServer, sampling: dict[str, Any], stream: bool) -> None:
    inputs = {
        "text_input": "Once upon a time",
        "stream": stream,
        "exclude_input_in_output": True,
        "sampling_parameters": {**sampling, "max_tokens": 100, "stop": ["no such text"]},
        "return_num_input_tokens": True,
        "return_num_output_tokens": True,
    }

    def ask() -> list[Response]:
        return stream_infer(server.grpc_address, "demo", inputs)

    answers = in_pieces(ask) if stream else ask()
    assert stream or len(answers) == 1
    assert all(len(answer.outputs["text_output"]) == 1 for answer in answers)  # it reads exactly one string
    assert sum(answer.outputs["num_output_tokens"][0] for answer in answers) <= 100
    assert answers[-1].final
