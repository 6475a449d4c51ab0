"""One server for the whole run, with the demo model as ``demo`` (decoupled) and ``sync`` (not)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import tritonclient.grpc
import tritonclient.http
from quire import LLM, CompletionOutput, SamplingParams
from quire.model_directory import DEMO_MODEL, resolve_model
from triton_server import TritonServer, started_server

KV_BYTES = 64 << 20
# One thread for each engine: several of them, and the clients, share what may be two cores.
ENGINE = {"kv_cache_memory_bytes": KV_BYTES, "num_threads": 1}
# Fields of a request to ``long_model`` that something else ends: a deadline, or a client that leaves.
ENDLESS = {"temperature": 0, "max_tokens": 8000, "ignore_eos": True}


@pytest.fixture(scope="session")
def demo_model() -> Path:
    return Path(resolve_model(DEMO_MODEL))


@pytest.fixture(scope="session")
def long_model(tmp_path_factory: pytest.TempPathFactory, demo_model: Path) -> Path:
    """The demo model with four times the positions: ``ENDLESS`` requests outlast what a test waits for."""
    directory = tmp_path_factory.mktemp("long_model")
    for file in demo_model.iterdir():
        (directory / file.name).symlink_to(file)
    config = json.loads((demo_model / "config.json").read_text())
    config["max_position_embeddings"] *= 4
    (directory / "config.json").unlink()
    (directory / "config.json").write_text(json.dumps(config))
    return directory


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory, demo_model: Path) -> Iterator[TritonServer]:
    directory = tmp_path_factory.mktemp("triton")
    with started_server(directory, f"--backend-config=quire,kv-arena-bytes={KV_BYTES}") as running:
        for name in ("demo", "sync"):
            running.write_model(name, {"model": demo_model, **ENGINE}, decoupled=name == "demo")
            running.load(name)
        yield running
        assert running.process.poll() is None, f"the server died:\n{running.log.read_text()[-4000:]}"
        status = running.stop()
        assert status == 0, f"the server exited with {status}:\n{running.log.read_text()[-4000:]}"


@pytest.fixture(params=["http", "grpc"])
def client(request: pytest.FixtureRequest, server: TritonServer) -> Iterator[Any]:
    """The stock client, over HTTP and then over gRPC."""
    if request.param == "http":
        made = tritonclient.http.InferenceServerClient(server.http_address)
    else:
        made = tritonclient.grpc.InferenceServerClient(server.grpc_address)
    with made:
        yield made


@pytest.fixture
def models(server: TritonServer, demo_model: Path) -> Iterator[Callable[..., None]]:
    """models(name, parameters, ...) writes and loads a model of the demo's files, unloaded after the test."""
    loaded = []

    def load(
        name: str,
        parameters: Mapping[str, object] | None = None,
        *,
        decoupled: bool = True,
        config: str = "",
    ) -> None:
        given = {"model": demo_model, **ENGINE, **(parameters or {})}
        server.write_model(name, given, decoupled=decoupled, config=config)
        server.load(name)
        loaded.append(name)

    yield load
    for name in loaded:
        server.unload(name)


@pytest.fixture(scope="session")
def reference(demo_model: Path) -> Callable[..., list[CompletionOutput]]:
    """reference(prompt, **sampling_params): what quire.LLM answers, in this process."""
    llm = LLM(demo_model, **ENGINE)

    def answer(prompt: str | list[int], **params: Any) -> list[CompletionOutput]:
        return list(llm.generate([prompt], SamplingParams(**params), use_tqdm=False)[0].outputs)

    return answer
