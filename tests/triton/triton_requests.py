"""Requests of the stock clients, from plain values."""

from __future__ import annotations

import json
import queue
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

Inputs = Mapping[str, Any]


def tensors(module: Any, inputs: Inputs) -> list[Any]:
    """A string is BYTES [1], a dict its JSON, a bool BOOL [1], a list of numbers INT32 [-1]."""
    made = []
    for name, value in inputs.items():
        if isinstance(value, dict):
            value = json.dumps(value)
        if isinstance(value, bool):
            array, kind = np.array([value]), "BOOL"
        elif isinstance(value, (str, bytes)):
            text = value.encode() if isinstance(value, str) else value
            array, kind = np.array([text], dtype=np.object_), "BYTES"
        else:
            array, kind = np.array(value, dtype=np.int32), "INT32"
        tensor = module.InferInput(name, list(array.shape), kind)
        tensor.set_data_from_numpy(array)
        made.append(tensor)
    return made


@dataclass(frozen=True)
class Response:
    """One response: tensors as lists, text decoded."""

    outputs: dict[str, Any]
    final: bool = False
    request_id: str = ""

    @property
    def text(self) -> str:
        return str(self.outputs["text_output"][0])


def _plain(array: np.ndarray[Any, Any]) -> Any:
    if array.dtype == np.object_:
        return [item.decode() for item in array.reshape(-1)]  # raises if a piece is not UTF-8
    return array.tolist()


def infer(
    client: Any,
    model: str,
    inputs: Inputs,
    parameters: Mapping[str, Any] | None = None,
    outputs: Sequence[str] = (),
    **options: Any,
) -> Response:
    """One response of a model that is not decoupled."""
    module: Any = tritonclient.grpc
    if isinstance(client, tritonclient.http.InferenceServerClient):
        module = tritonclient.http
    wanted = [module.InferRequestedOutput(name) for name in outputs] or None
    result = client.infer(
        model, tensors(module, inputs), outputs=wanted, parameters=dict(parameters or {}), **options
    )
    response = result.get_response()
    if module is tritonclient.http:
        return Response({o["name"]: _plain(result.as_numpy(o["name"])) for o in response["outputs"]})
    return Response({o.name: _plain(result.as_numpy(o.name)) for o in response.outputs})


class Stream:
    """An open gRPC stream: requests go in, responses come out."""

    def __init__(self, address: str) -> None:
        self.client = tritonclient.grpc.InferenceServerClient(address)
        self._answers: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
        self.client.start_stream(lambda result, error: self._answers.put((result, error)))

    def send(
        self,
        model: str,
        inputs: Inputs,
        parameters: Mapping[str, Any] | None = None,
        outputs: Sequence[str] = (),
        request_id: str = "",
    ) -> None:
        self.client.async_stream_infer(
            model,
            tensors(tritonclient.grpc, inputs),
            outputs=[tritonclient.grpc.InferRequestedOutput(name) for name in outputs] or None,
            request_id=request_id,
            enable_empty_final_response=True,
            parameters=dict(parameters or {}),
        )

    def next(self, timeout: float = 30.0) -> Response:
        """Raises what the server answered instead, or queue.Empty."""
        result, error = self._answers.get(timeout=timeout)
        if error is not None:
            raise error
        response = result.get_response()
        return Response(
            {output.name: _plain(result.as_numpy(output.name)) for output in response.outputs},
            response.parameters["triton_final_response"].bool_param,
            response.id,
        )

    def until_final(self) -> list[Response]:
        """The responses of one request, the final one included."""
        responses = [self.next()]
        while not responses[-1].final:
            responses.append(self.next())
        return responses

    def cancel(self) -> None:
        """Ends the stream without waiting for what is under way."""
        self.client.stop_stream(cancel_requests=True)

    def close(self) -> None:
        """Ends the stream when everything sent is answered."""
        self.client.stop_stream()
        self.client.close()


@contextmanager
def open_stream(address: str) -> Iterator[Stream]:
    """Waits at the end for what is under way, unless the test has cancelled it.

    Only tests of cancellation cancel: now and then the server's gRPC side then keeps the model for ever, with
    any backend, and other tests would pay for it.
    """
    stream = Stream(address)
    try:
        yield stream
    except BaseException:
        stream.cancel()
        raise
    finally:
        stream.close()


def stream_infer(
    address: str,
    model: str,
    inputs: Inputs,
    parameters: Mapping[str, Any] | None = None,
    outputs: Sequence[str] = (),
) -> list[Response]:
    """All responses to one request on a stream of its own."""
    stream = Stream(address)
    try:
        stream.send(model, inputs, parameters, outputs)
        return stream.until_final()
    finally:
        stream.close()


def error_of(client: Any, model: str, inputs: Inputs, parameters: Mapping[str, Any] | None = None) -> str:
    """Status and message of a request that must fail."""
    try:
        answer = infer(client, model, inputs, parameters)
    except InferenceServerException as error:
        return f"{error.status()} {error.message()}"
    raise AssertionError(f"answered: {answer}")
