"""Loading, unloading and reloading models while requests go on."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from triton_metrics import is_idle, read_metrics
from triton_requests import open_stream
from triton_server import TritonServer, poll, started_server

PROMPT = "Once upon a time"
GREEDY = {"temperature": 0, "max_tokens": 10}
LONG = {"text_input": PROMPT, "stream": True, "sampling_parameters": {"max_tokens": 400, "ignore_eos": True}}
Models = Callable[..., None]
Reference = Callable[..., Any]


def test_several_models_answer_at_once(server: TritonServer, models: Models, reference: Reference) -> None:
    names = ["first", "second", "third"]
    for name in names:
        models(name)

    def answer(name: str) -> str:
        return str(
            server.generate(name, text_input=PROMPT, exclude_input_in_output=True, **GREEDY)["text_output"]
        )

    with ThreadPoolExecutor(6) as pool:
        answers = set(pool.map(answer, names * 4))
    assert answers == {reference(PROMPT, **GREEDY)[0].text}


def test_several_instances_answer_at_once(server: TritonServer, models: Models, reference: Reference) -> None:
    models("twins", config="instance_group [ { count: 2 } ]\n")

    def answer(_: int) -> str:
        return str(
            server.generate("twins", text_input=PROMPT, exclude_input_in_output=True, **GREEDY)["text_output"]
        )

    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(answer, range(12))) == {reference(PROMPT, **GREEDY)[0].text}
    assert read_metrics(server, "twins")("request_success_total", finished_reason="length") == 12


def test_models_share_the_servers_arena(server: TritonServer, models: Models, reference: Reference) -> None:
    """64 MiB, by the server's command line, for both."""
    parameters = {"kv_arena": "shared", "kv_cache_memory_bytes": 0}
    models("tenant_a", parameters)
    models("tenant_b", parameters)
    for name in ("tenant_a", "tenant_b"):
        answer = server.generate(name, text_input=PROMPT, exclude_input_in_output=True, **GREEDY)
        assert answer["text_output"] == reference(PROMPT, **GREEDY)[0].text


def test_a_name_can_be_loaded_again(server: TritonServer, models: Models) -> None:
    for max_model_len in (64, 128):
        models("again", {"max_model_len": max_model_len})
        answer = server.generate(
            "again", text_input=PROMPT, max_tokens=2000, ignore_eos=True, return_num_output_tokens=True
        )
        assert answer["num_output_tokens"] < max_model_len
        server.unload("again")
        assert not server.is_ready("again")
    models("again")


def test_unloading_lets_requests_finish(server: TritonServer, models: Models) -> None:
    models("leaving")
    with open_stream(server.grpc_address) as stream:
        stream.send("leaving", {**LONG, "return_num_output_tokens": True})
        first = stream.next()
        server.request("v2/repository/models/leaving/unload", {})
        responses = [first, *stream.until_final()]
    assert sum(response.outputs["num_output_tokens"][0] for response in responses) == 400
    poll("the model is gone", lambda: server.state("leaving") == "UNAVAILABLE")


def test_reloading_lets_requests_finish_on_the_old_one(server: TritonServer, models: Models) -> None:
    models("renewed")
    with open_stream(server.grpc_address) as stream:
        stream.send("renewed", {**LONG, "return_num_output_tokens": True})
        first = stream.next()
        models("renewed", {"max_model_len": 64})
        capped = server.generate(
            "renewed", text_input=PROMPT, max_tokens=2000, ignore_eos=True, return_num_output_tokens=True
        )
        responses = [first, *stream.until_final()]
    assert capped["num_output_tokens"] < 64
    assert sum(response.outputs["num_output_tokens"][0] for response in responses) == 400


def test_a_failed_reload_leaves_the_old_one_serving(tmp_path: Path, demo_model: Path) -> None:
    """On a server of its own: this server counts the failed one as alive, and does not end in good order."""
    parameters = {"model": demo_model, "kv_cache_memory_bytes": 64 << 20}
    with started_server(tmp_path) as server:
        server.write_model("steady", parameters)
        server.load("steady")
        server.write_model("steady", {**parameters, "block_size": 17})
        assert "block_size" in server.try_to_load("steady").body
        assert server.generate("steady", text_input=PROMPT, **GREEDY)["text_output"].startswith(PROMPT)
        server.write_model("steady", {**parameters, "max_model_len": 64})
        server.load("steady")
        assert server.request("v2/models/steady/generate", {"input_ids": [5] * 64}).status == 400
        server.process.kill()


def test_a_model_in_which_nothing_has_changed_is_not_loaded_again(
    server: TritonServer, models: Models
) -> None:
    """New weights in the directory that `model` names are not looked for: docs/triton.md says what to do."""
    models("touched")

    def num_loads() -> int:
        return server.log.read_text().count("model 'touched': ")

    assert num_loads() == 1
    config = server.repository / "touched" / "config.pbtxt"
    config.write_text(config.read_text() + "# a comment\n")
    server.load("touched")
    assert num_loads() == 1
    time.sleep(0.05)  # a file system's clock may tick every few milliseconds
    (server.repository / "touched" / "1" / "stamp").touch()
    server.load("touched")
    assert num_loads() == 2


def test_a_model_is_warmed_up_before_it_is_ready(server: TritonServer, models: Models) -> None:
    warmup = """
model_warmup {
  name: "greedy"
  batch_size: 1
  inputs { key: "input_ids" value { data_type: TYPE_INT32 dims: [ 8 ] zero_data: true } }
}
"""
    models("warm", config=warmup)
    assert read_metrics(server, "warm")("prompt_tokens_total") == 8


def test_loading_and_unloading_returns_the_memory(server: TritonServer, models: Models) -> None:
    import psutil

    process = psutil.Process(server.process.pid)

    def cycle() -> None:
        models("cycle")
        server.generate("cycle", text_input=PROMPT, **GREEDY)
        server.unload("cycle")

    for _ in range(2):
        cycle()
    before = process.memory_info().rss
    threads = process.num_threads()
    for _ in range(6):
        cycle()
    assert process.memory_info().rss - before < 30e6
    poll("its threads are gone", lambda: process.num_threads() <= threads + 2)


def test_an_idle_model_holds_nothing(server: TritonServer) -> None:
    server.generate("demo", text_input=PROMPT, **GREEDY)
    poll("demo is idle", lambda: is_idle(server, "demo"))
