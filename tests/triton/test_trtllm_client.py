"""What clients of TensorRT-LLM's models send: tensors of shape [1, 1] for what others say in JSON."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from triton_server import TritonServer
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

PROMPT = "Once upon a time"
BATCHED = "max_batch_size: 1\n"
Models = Callable[..., None]
Reference = Callable[..., Any]


@pytest.fixture(autouse=True)
def trtllm(models: Models) -> Iterator[None]:
    models("trtllm", config=BATCHED)
    models("trtllm_sync", config=BATCHED, decoupled=False)
    yield


def inputs(module: Any, prompt: str = PROMPT, **fields: Any) -> list[Any]:
    """The inputs that NVIDIA's clients prepare."""
    arrays = {
        "text_input": np.array([[prompt]]).astype(object),
        "max_tokens": np.array([[12]], dtype=np.int32),
        "bad_words": np.array([[""]], dtype=object),
        "stop_words": np.array([[""]], dtype=object),
        "stream": np.array([[False]]),
        "temperature": np.array([[0]], dtype=np.float32),
        "top_k": np.array([[1]], dtype=np.int32),
        "top_p": np.array([[1]], dtype=np.float32),
        "presence_penalty": np.array([[0]], dtype=np.float32),
        "frequency_penalty": np.array([[0]], dtype=np.float32),
        "seed": np.array([[7]], dtype=np.uint64),
        "beam_width": np.array([[1]], dtype=np.int32),
        "return_log_probs": np.array([[True]]),
        **fields,
    }
    made = []
    for name, array in arrays.items():
        tensor = module.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        tensor.set_data_from_numpy(array)
        made.append(tensor)
    return made


def test_a_whole_answer(client: Any, reference: Reference) -> None:
    grpc = isinstance(client, tritonclient.grpc.InferenceServerClient)
    result = client.infer("trtllm_sync", inputs(tritonclient.grpc if grpc else tritonclient.http))
    [expected] = reference(PROMPT, temperature=0, max_tokens=12, logprobs=0)
    assert result.as_numpy("text_output").tolist() == [[(PROMPT + expected.text).encode()]]
    logprobs = result.as_numpy("output_log_probs")
    assert logprobs.shape == (1, 1, 12)
    assert result.as_numpy("cum_log_probs") == pytest.approx(logprobs.sum(axis=2), abs=1e-4)
    assert result.as_numpy("cum_log_probs").item() == pytest.approx(expected.cumulative_logprob, abs=1e-4)


def test_a_stream_that_ends_with_the_final_response(server: TritonServer, reference: Reference) -> None:
    answers: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
    texts = []
    with tritonclient.grpc.InferenceServerClient(server.grpc_address) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        live = np.array([[True]])
        client.async_stream_infer("trtllm", inputs(tritonclient.grpc, stream=live))
        while True:
            result, error = answers.get(timeout=30)
            assert error is None
            texts.append(result.as_numpy("text_output").item().decode())
            if result.get_response().parameters["triton_final_response"].bool_param:
                break
        client.stop_stream()
    assert "".join(texts) == reference(PROMPT, temperature=0, max_tokens=12)[0].text


def test_stop_words_end_the_text(client: Any, reference: Reference) -> None:
    module: Any = tritonclient.grpc
    if isinstance(client, tritonclient.http.InferenceServerClient):
        module = tritonclient.http
    text = reference(PROMPT, temperature=0, max_tokens=12)[0].text
    words = np.array([["no such text", text[8:12]]], dtype=object)
    result = client.infer("trtllm_sync", inputs(module, stop_words=words))
    assert result.as_numpy("text_output").item().decode() == PROMPT + text[: text.index(text[8:12])]


def test_bad_words_are_not_in_the_text(client: Any, reference: Reference) -> None:
    module: Any = tritonclient.grpc
    if isinstance(client, tritonclient.http.InferenceServerClient):
        module = tritonclient.http
    word = reference(PROMPT, temperature=0, max_tokens=12)[0].text.split()[0]
    expected = reference(PROMPT, temperature=0, max_tokens=12, bad_words=[word])[0].text
    result = client.infer("trtllm_sync", inputs(module, bad_words=np.array([[word]], dtype=object)))
    assert result.as_numpy("text_output").item().decode() == PROMPT + expected
    with pytest.raises(InferenceServerException, match=r"bad_words\[0\] is nothing but blanks"):
        client.infer("trtllm_sync", inputs(module, bad_words=np.array([["  "]], dtype=object)))


@pytest.mark.parametrize("model", ["trtllm", "trtllm_sync", "demo"])
def test_its_quick_start_is_served(server: TritonServer, reference: Reference, model: str) -> None:
    """Every model serves it: where the fields are no inputs they are parameters."""
    fields = {"max_tokens": 12, "bad_words": "", "stop_words": "", "pad_id": 2, "end_id": 2, "temperature": 0}
    answer = server.generate(model, text_input=PROMPT, **fields)
    assert answer["text_output"] == PROMPT + reference(PROMPT, temperature=0, max_tokens=12)[0].text


def test_generate_takes_a_list_of_stop_words(server: TritonServer, reference: Reference) -> None:
    text = reference(PROMPT, temperature=0, max_tokens=12)[0].text
    fields = {"max_tokens": 12, "temperature": 0, "stop_words": ["no such text", text[8:12]]}
    answer = server.generate("demo", text_input=PROMPT, **fields)
    assert answer["text_output"] == PROMPT + text[: text.index(text[8:12])]
