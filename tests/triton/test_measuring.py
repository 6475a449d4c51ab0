"""``quire bench serve --target triton``, by gRPC."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from triton_server import TritonServer


def bench(server: TritonServer, *args: str, status: int = 0) -> Any:
    size = ("--num-prompts", "6", "--random-input-len", "12", "--random-output-len", "9")
    target = ("--target", "triton", "--base-url", server.grpc_address)
    done = subprocess.run(
        [sys.executable, "-m", "quire", "bench", "serve", "--json", *target, *size, *args],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == status, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("form", ["ids", "text"])
def test_streams_are_measured(server: TritonServer, form: str) -> None:
    args = ("--served-model-name", "demo", "--prompt-form", form, "--num-warmups", "1", "--save-detailed")
    result = bench(server, *args, "--max-concurrency", "2")
    assert (result["completed"], result["failed"]) == (6, 0)
    assert result["backend"] == "triton"
    assert (result["total_input_tokens"], result["total_output_tokens"]) == (72, 54)
    assert result["max_concurrent_requests"] <= 2
    assert 0 < result["mean_ttft_ms"] < result["mean_e2el_ms"]
    assert all(result["generated_texts"])


def test_a_model_that_is_not_there_is_an_error_that_is_counted(server: TritonServer) -> None:
    result = bench(server, "--served-model-name", "nobody", status=1)
    assert result["failed"] == 6
    assert "nobody" in next(iter(result["error_counts"]))
