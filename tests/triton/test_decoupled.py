"""Which doors a decoupled model opens, and which need one that is not."""

from __future__ import annotations

import urllib.error
import urllib.request
from typing import Any

import pytest
import tritonclient.grpc
import tritonclient.http
from pieces import in_pieces
from quire.triton.launcher import open_url
from triton_requests import error_of, infer, stream_infer
from triton_server import TritonServer
from tritonclient.utils import InferenceServerException

REQUEST = {"text_input": "Once upon a time"}
GREEDY = {"temperature": 0, "max_tokens": 20}


def test_one_answer_doors_refuse_a_decoupled_model(client: Any) -> None:
    """The server's own answer; quire_demo_sync shows the way out."""
    with pytest.raises(InferenceServerException, match="decoupled") as error:
        infer(client, "demo", REQUEST)
    grpc = isinstance(client, tritonclient.grpc.InferenceServerClient)
    assert error.value.status() == ("StatusCode.UNIMPLEMENTED" if grpc else "501")


def test_a_stream_of_a_model_that_is_not_decoupled_is_refused(client: Any) -> None:
    error = error_of(client, "sync", {**REQUEST, "stream": True})
    assert "stream" in error and "decoupled" in error


def test_generate_stream_of_a_model_that_is_not_decoupled_is_refused(server: TritonServer) -> None:
    answer = server.request("v2/models/sync/generate_stream", {**REQUEST, "stream": True})
    assert answer.status == 400
    assert "decoupled" in answer.body


def test_generate_stream_answers_once_without_stream(server: TritonServer) -> None:
    for model in ("demo", "sync"):
        [event] = server.generate_stream(model, **REQUEST, stream=False)
        assert event["text_output"].startswith("Once upon a time")


def test_generate_refuses_more_than_one_response(server: TritonServer) -> None:
    """The server's own rule (it says so with status 200); it must not harm the next request."""
    answer = server.request("v2/models/demo/generate", {**REQUEST, "stream": True, "max_tokens": 30})
    assert "exactly 1 response" in answer.json()["error"]
    assert server.generate("demo", **REQUEST)["text_output"]


def test_a_grpc_stream_serves_both_kinds(server: TritonServer) -> None:
    assert len(stream_infer(server.grpc_address, "demo", REQUEST)) == 1
    assert len(stream_infer(server.grpc_address, "sync", REQUEST)) == 1


ENSEMBLE = """platform: "ensemble"
input [
  { name: "prompt" data_type: TYPE_STRING dims: [ 1 ] },
  { name: "live" data_type: TYPE_BOOL dims: [ 1 ] }
]
output [ { name: "text" data_type: TYPE_STRING dims: [ -1 ] } ]
ensemble_scheduling { step [ {
  model_name: "demo" model_version: -1
  input_map [ { key: "text_input" value: "prompt" }, { key: "stream" value: "live" } ]
  output_map { key: "text_output" value: "text" }
} ] }
"""


def test_an_ensemble_over_a_decoupled_model_streams(server: TritonServer) -> None:
    (server.repository / "ensemble" / "1").mkdir(parents=True)
    (server.repository / "ensemble" / "config.pbtxt").write_text(ENSEMBLE)
    server.load("ensemble")
    expected = [
        r.text for r in stream_infer(server.grpc_address, "demo", {**REQUEST, "stream": True}, GREEDY)
    ]
    inputs = {"prompt": REQUEST["text_input"], "live": True}
    deltas = in_pieces(lambda: stream_infer(server.grpc_address, "ensemble", inputs, GREEDY))
    assert deltas[-1].final
    assert "".join(delta.outputs["text"][0] for delta in deltas) == "".join(expected)
    server.unload("ensemble")


def test_errors_of_the_server_itself_keep_their_status(server: TritonServer) -> None:
    """What docs/triton.md lists beside the 400 of a model's errors."""
    assert server.request("v2/models/nobody/generate", REQUEST).status == 404
    assert server.request("v2/models/sync/generate", {**REQUEST, "top_p": 7}).status == 400
    for endpoint in ("generate", "generate_stream"):
        request = urllib.request.Request(f"{server.url}/v2/models/sync/{endpoint}", data=b"{no JSON")
        with pytest.raises(urllib.error.HTTPError) as error:
            open_url(request, timeout=10)
        assert error.value.code == 500
