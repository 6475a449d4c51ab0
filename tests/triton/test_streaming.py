"""Decoupled responses on a gRPC stream."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import tritonclient.grpc.aio as grpc_aio
from pieces import in_pieces
from triton_requests import Response, open_stream, stream_infer, tensors
from triton_server import TritonServer
from tritonclient.utils import InferenceServerException

PROMPT = "Once upon a time"
GREEDY = {"temperature": 0, "max_tokens": 40}
Reference = Callable[..., Any]


def stream(server: TritonServer, prompt: str, sampling: dict[str, Any], **flags: bool) -> list[Response]:
    inputs = {"text_input": prompt, "stream": True, "sampling_parameters": sampling, **flags}
    return stream_infer(server.grpc_address, "demo", inputs)


def test_deltas_add_up_to_the_text(server: TritonServer, reference: Reference) -> None:
    deltas = in_pieces(lambda: stream(server, PROMPT, GREEDY))
    assert "".join(delta.text for delta in deltas) == reference(PROMPT, **GREEDY)[0].text


@pytest.mark.parametrize("empty_final", [False, True])
@pytest.mark.parametrize("live", [False, True], ids=["one", "many"])
def test_the_last_response_with_data_is_the_final_one(
    server: TritonServer, empty_final: bool, live: bool
) -> None:
    """The vLLM backend has it so, too: a client need not ask for empty responses to see the end."""
    with open_stream(server.grpc_address) as opened:
        sent = opened.client.async_stream_infer

        def asking(*args: Any, **options: Any) -> None:
            sent(*args, **{**options, "enable_empty_final_response": empty_final})

        opened.client.async_stream_infer = asking
        inputs = {"text_input": PROMPT, "stream": live, "sampling_parameters": GREEDY}
        pieces = 0
        for _ in range(5):  # a leftover of the first would come before the second's answer
            opened.send("demo", {**inputs, "return_finish_reason": True})
            *earlier, last = opened.until_final()
            assert last.outputs["finish_reason"] == ["length"]
            assert all(response.outputs["finish_reason"] == ["None"] for response in earlier)
            pieces += len(earlier)
        assert bool(pieces) == live


def test_the_asyncio_client_sees_the_end(server: TritonServer) -> None:
    """The asyncio client has no way to ask for an empty final response."""

    def request() -> dict[str, Any]:
        inputs = {"text_input": PROMPT, "stream": True, "sampling_parameters": GREEDY}
        return {"model_name": "demo", "inputs": tensors(grpc_aio, inputs)}

    async def finals() -> list[bool]:
        async def requests() -> AsyncIterator[dict[str, Any]]:
            yield request()

        async with grpc_aio.InferenceServerClient(server.grpc_address) as client:
            seen = []
            async for result, error in client.stream_infer(requests(), stream_timeout=30):
                assert error is None, error
                seen.append(result.get_response().parameters["triton_final_response"].bool_param)
            return seen

    *earlier, last = in_pieces(lambda: asyncio.run(finals()))
    assert last and not any(earlier)


def test_without_stream_there_is_one_response(server: TritonServer, reference: Reference) -> None:
    inputs = {"text_input": PROMPT, "sampling_parameters": GREEDY}
    [answer] = stream_infer(server.grpc_address, "demo", inputs)
    assert answer.final and answer.text == PROMPT + reference(PROMPT, **GREEDY)[0].text


def test_ids_and_counts_of_the_deltas_add_up(server: TritonServer, reference: Reference) -> None:
    flags = {"return_output_ids": True, "return_num_output_tokens": True, "return_num_input_tokens": True}
    deltas = stream(server, PROMPT, GREEDY, **flags)
    ids = [token for delta in deltas for token in delta.outputs["output_ids"][0]]
    assert ids == list(reference(PROMPT, **GREEDY)[0].token_ids)
    assert sum(delta.outputs["num_output_tokens"][0] for delta in deltas) == 40
    assert len({tuple(delta.outputs["num_input_tokens"]) for delta in deltas}) == 1


def test_only_the_last_delta_has_a_finish_reason(server: TritonServer) -> None:
    deltas = in_pieces(lambda: stream(server, PROMPT, GREEDY, return_finish_reason=True))
    reasons = [delta.outputs["finish_reason"][0] for delta in deltas]
    assert reasons[-1] == "length"
    assert set(reasons[:-1]) == {"None"}  # what the vLLM backend says


@pytest.mark.parametrize("text", ["añoñé ünïcödé", "猫は魚を食べる", "🐈🐟🐈🐟", "жизнь и море"])
def test_a_character_is_never_cut(server: TritonServer, reference: Reference, text: str) -> None:
    """Every piece decodes by itself (triton_requests.py does), whatever the tokens are."""
    sampling = {"temperature": 1.0, "seed": 5, "max_tokens": 60, "ignore_eos": True}
    prompt = f"<|im_start|>user\nRepeat: {text}<|im_end|>\n<|im_start|>assistant\n"
    deltas = stream(server, prompt, sampling)
    assert "".join(delta.text for delta in deltas) == reference(prompt, **sampling)[0].text


def test_bytes_that_are_no_text_come_out_as_the_engines_text(
    server: TritonServer, reference: Reference
) -> None:
    """Biased towards single bytes: incomplete characters, replaced as in the unstreamed text."""
    bias = {str(token): 50 for token in range(200, 256)}
    sampling = {"temperature": 1.0, "seed": 1, "max_tokens": 40, "logit_bias": bias}
    deltas = stream(server, PROMPT, sampling)
    given = {**sampling, "logit_bias": {int(token): value for token, value in bias.items()}}
    assert "".join(delta.text for delta in deltas) == reference(PROMPT, **given)[0].text


def test_a_stop_string_is_never_shown_in_part(server: TritonServer, reference: Reference) -> None:
    text = reference(PROMPT, **GREEDY)[0].text
    stop = text[30:42]
    deltas = stream(server, PROMPT, {**GREEDY, "stop": [stop]}, return_finish_reason=True)
    assert "".join(delta.text for delta in deltas) == text[: text.index(stop)]
    assert deltas[-1].outputs["finish_reason"] == ["stop"]


def test_n_completions_stream_side_by_side(server: TritonServer, reference: Reference) -> None:
    sampling = {"n": 2, "seed": 11, "temperature": 1.0, "max_tokens": 20}
    deltas = stream(server, PROMPT, sampling)
    texts: dict[int, str] = defaultdict(str)
    for delta in deltas:
        assert len(delta.outputs["text_output"]) == 2
        for index, text in enumerate(delta.outputs["text_output"]):
            texts[index] += text
    assert [texts[0], texts[1]] == [completion.text for completion in reference(PROMPT, **sampling)]


def test_requests_of_one_stream_are_told_apart_by_their_id(
    server: TritonServer, reference: Reference
) -> None:
    prompts = {"a": "Once upon a time", "b": "The baker said", "c": "Mira has a cat"}
    texts: dict[str, str] = defaultdict(str)
    with open_stream(server.grpc_address) as opened:
        for request_id, prompt in prompts.items():
            inputs = {"text_input": prompt, "stream": True, "sampling_parameters": GREEDY}
            opened.send("demo", inputs, request_id=request_id)
        unfinished = set(prompts)
        while unfinished:
            response = opened.next()
            texts[response.request_id] += response.text if response.outputs else ""
            if response.final:
                unfinished.remove(response.request_id)
    assert texts == {key: reference(prompt, **GREEDY)[0].text for key, prompt in prompts.items()}


def test_an_error_ends_its_request_and_not_the_stream(server: TritonServer, reference: Reference) -> None:
    good = {"text_input": PROMPT, "stream": True, "sampling_parameters": GREEDY}
    with open_stream(server.grpc_address) as opened:
        opened.send("demo", {**good, "sampling_parameters": {"top_p": 7}})
        with pytest.raises(InferenceServerException, match="top_p"):
            opened.next()
        opened.send("demo", good)
        responses = opened.until_final()
    # The refused request may have had a final response of its own.
    text = "".join(response.text for response in responses if response.outputs)
    text = text or "".join(r.text for r in opened.until_final() if r.outputs)
    assert text == reference(PROMPT, **GREEDY)[0].text


def test_a_stream_of_a_model_that_is_not_decoupled_has_one_response(server: TritonServer) -> None:
    inputs = {"text_input": PROMPT, "sampling_parameters": GREEDY}
    [answer] = stream_infer(server.grpc_address, "sync", inputs)
    assert answer.final and answer.text.startswith(PROMPT)
