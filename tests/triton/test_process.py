"""The server as a process: what it maps, and what a client's memory can do to it."""

from __future__ import annotations

from collections.abc import Iterator
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import pytest
import tritonclient.grpc
import tritonclient.http
from triton_requests import infer, tensors
from triton_server import TritonServer
from tritonclient.utils import InferenceServerException

REQUEST = {"text_input": "Once upon a time", "sampling_parameters": {"temperature": 0, "max_tokens": 20}}


def test_there_is_no_python_in_the_server(server: TritonServer) -> None:
    maps = Path(f"/proc/{server.process.pid}/maps").read_text()
    assert "libtriton_quire.so" in maps
    assert "libquire.so" in maps
    assert "libpython" not in maps
    assert "_core." not in maps


@pytest.fixture
def region(client: Any) -> Iterator[SharedMemory]:
    """A kilobyte that the server knows as `region`."""
    memory = SharedMemory(create=True, size=1024)
    client.register_system_shared_memory("region", f"/{memory.name.lstrip('/')}", 1024)
    yield memory
    client.unregister_system_shared_memory("region")
    memory.close()
    memory.unlink()


def infer_into(client: Any, byte_size: int) -> Any:
    module: Any = tritonclient.grpc
    if isinstance(client, tritonclient.http.InferenceServerClient):
        module = tritonclient.http
    output = module.InferRequestedOutput("text_output")
    output.set_shared_memory("region", byte_size)
    return client.infer("sync", tensors(module, REQUEST), outputs=[output])


def test_an_answer_can_go_into_shared_memory(client: Any, region: SharedMemory) -> None:
    expected = infer(client, "sync", REQUEST).text
    infer_into(client, 1024)
    assert region.buf is not None
    content = bytes(region.buf)
    size = int.from_bytes(content[:4], "little")
    assert content[4 : 4 + size].decode() == expected


def test_shared_memory_that_is_too_small_is_an_error_of_that_request(
    client: Any, region: SharedMemory, server: TritonServer
) -> None:
    for _ in range(3):
        with pytest.raises(InferenceServerException):
            infer_into(client, 8)
    assert server.process.poll() is None
    assert infer(client, "sync", REQUEST).text.startswith("Once upon a time")


def test_the_log_has_no_prompts(server: TritonServer) -> None:
    server.generate("demo", text_input="my secret is zanzibar", max_tokens=3)
    server.request("v2/models/demo/generate", {"text_input": "my secret is zanzibar", "top_p": 7})
    assert "zanzibar" not in server.log.read_text()
