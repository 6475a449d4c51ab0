"""Requests that nobody would write: made of /openapi.json by Schemathesis, and bytes that are hardly HTTP.

QUIRE_TESTS=full sends tens of thousands.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from serving import RunningServer, metric, running_server

FULL = os.environ.get("QUIRE_TESTS") == "full"
KNOWN = {"prompt": "Once upon a time", "max_tokens": 24, "temperature": 0, "ignore_eos": True}
# What a server that is not asleep has no reason for.
ROUTES_THAT_STOP = "/(pause|resume|sleep|wake_up)$"


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_server("--max-model-len", "128", "--enable-admin", "--client-timeout", "2") as server:
        yield server


@pytest.fixture(autouse=True)
def nothing_is_left(server: RunningServer) -> Iterator[None]:
    """The engine gives the same tokens afterwards, runs nothing and holds no memory."""

    def tokens() -> Any:
        return httpx.post(server.url + "/v1/completions", json=KNOWN).json()["choices"]

    before = tokens()
    yield
    assert tokens() == before
    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
        assert metric(server, f"quire:{name}", wait_for=0.0) == 0.0, name
    assert httpx.get(server.url + "/health").status_code == 200


def test_every_answer_is_what_the_description_says(server: RunningServer, tmp_path: Path) -> None:
    amount = ["--max-examples", "4000"] if FULL else ["--max-examples", "40", "--max-time", "8"]
    command = [
        str(Path(sys.executable).with_name("schemathesis")), "run", server.url + "/openapi.json", *amount,
        "--phases", "examples,coverage,fuzzing", "--no-shrink", "--continue-on-failure", "--no-color",
        # Bodies that fit the description may ask for what cannot be; others may be read all the same.
        "--exclude-checks", "positive_data_acceptance,negative_data_rejection",
        "--exclude-path-regex", ROUTES_THAT_STOP, "--generation-database", "none", "--warnings", "off",
        "--seed", "1",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-20_000:]
    found = re.search(r"(\d+) generated", done.stdout)
    assert found is not None and int(found[1]) > (10_000 if FULL else 20), done.stdout[-2000:]


BODY = json.dumps({"prompt": "Once", "max_tokens": 2}).encode()
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
WHOLE = HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
STREAM = json.dumps({"prompt": "Once", "max_tokens": 2, "stream": True}).encode()
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
GET = b"GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n"
SEEDS = {
    "whole": WHOLE,
    "pipelined": WHOLE + GET + HEAD + b"Content-Length: %d\r\n\r\n" % len(STREAM) + STREAM + GET,
    "many pipelined": GET * 200,
    "thousands pipelined": (GET * 20 + WHOLE) * 150,
    "chunked": CHUNKED + b"%x\r\n" % len(BODY) + BODY + b"\r\n0\r\n\r\n",
    "chunks of one byte": CHUNKED + b"".join(b"1\r\n%c\r\n" % byte for byte in BODY) + b"0\r\n\r\n",
    "chunks with extensions": CHUNKED + b"%x;a=b\r\n" % len(BODY) + BODY + b"\r\n0\r\nX: trailer\r\n\r\n",
    "a chunk's length is wrong": CHUNKED + b"5\r\n" + BODY + b"\r\n0\r\n\r\n",
    "a chunk's length is huge": CHUNKED + b"ffffffffffffffff\r\n" + BODY,
    "a chunk's length is none": CHUNKED + b"xyz\r\n" + BODY,
    "a huge length": HEAD + b"Content-Length: 99999999999999999999\r\n\r\n" + BODY,
    "a length beyond the limit": HEAD + b"Content-Length: 40000000\r\n\r\n" + BODY,
    "a negative length": HEAD + b"Content-Length: -1\r\n\r\n" + BODY,
    "two lengths": HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n" + BODY,
    "a length and chunks": CHUNKED.replace(b"\r\n\r\n", b"\r\nContent-Length: 5\r\n\r\n") + BODY,
    "too short a length": HEAD + b"Content-Length: 5\r\n\r\n" + BODY,
    "NUL bytes": WHOLE.replace(b"Host: a", b"Host: a\x00b"),
    "NUL bytes in the path": GET.replace(b"models", b"mo\x00dels"),
    "NUL bytes in the body": WHOLE.replace(b"Once", b"\x00\x00\x00\x00"),
    "half a header": WHOLE[:60],
    "half a body": WHOLE[:-5],
    "nothing": b"",
    "lines without returns": WHOLE.replace(b"\r\n", b"\n"),
    "HTTP/1.0": GET.replace(b"1.1", b"1.0"),
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "HTTP/9.9": GET.replace(b"1.1", b"9.9"),
    "another protocol": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
    "a websocket": GET.replace(b"\r\n\r\n", b"\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n"),
    "an upgrade": WHOLE.replace(b"Host: a", b"Host: a\r\nConnection: upgrade\r\nUpgrade: h2c"),
    "an absolute path": GET.replace(b"/v1", b"http://b/v1"),
    "no path": GET.replace(b"/v1/models", b"*"),
    "a tunnel": b"CONNECT a:80 HTTP/1.1\r\n\r\n",
    "a path beyond ASCII": GET.replace(b"models", "mödels".encode()),
    "a path with escapes": GET.replace(b"models", b"models/%00%ff%zz/../.."),
    "an expectation": WHOLE.replace(b"Host: a", b"Host: a\r\nExpect: 100-continue"),
    "folded headers": GET.replace(b"Host: a", b"Host: a\r\n b\r\n\tc"),
    "a head alone": GET.replace(b"GET", b"HEAD"),
    "an unknown method": GET.replace(b"GET", b"BREW"),
}  # fmt: skip


def connect(server: RunningServer) -> socket.socket:
    url = urlsplit(server.url)
    return socket.create_connection((url.hostname or "", url.port or 0))


def statuses_of(server: RunningServer, data: bytes, count: int) -> list[int]:
    """Of what it is answered with, when there are as many as this or the connection ends."""
    received = b""
    with connect(server) as client, contextlib.suppress(ConnectionError):
        client.settimeout(20)
        client.sendall(data)
        while len(statuses(received)) < count and (part := client.recv(65536)):
            received += part
    return statuses(received)


def send(server: RunningServer, data: bytes, rng: random.Random) -> bytes:
    """Sends it whole or in pieces, perhaps closes half, and reads for a moment, or not at all."""
    received = b""
    with connect(server) as client, contextlib.suppress(OSError):
        cut = rng.randrange(len(data) + 1) if rng.random() < 0.3 else 0
        client.sendall(data[:cut])
        client.sendall(data[cut:])
        if rng.random() < 0.3:
            client.shutdown(socket.SHUT_WR)
        client.settimeout(0.02 if rng.random() < 0.8 else 0.001)
        while len(received) < 1 << 20 and (part := client.recv(65536)):
            received += part
    return received


def mutated(data: bytes, rng: random.Random) -> bytes:
    made = bytearray(data)
    for _ in range(rng.randrange(1, 5)):
        at = rng.randrange(len(made) + 1)
        match rng.randrange(6):
            case 0:
                made[at : at + 1] = bytes([rng.randrange(256)])
            case 1:
                made[at:at] = rng.randbytes(rng.randrange(9))
            case 2:
                del made[at : at + rng.randrange(20)]
            case 3:
                made[at:at] = made[at : at + rng.randrange(60)]
            case 4:
                made[at:at] = rng.choice(
                    [b"\r\n", b"\n", b"\0", b":", b"\r\n\r\n", b"0\r\n\r\n", b"\xff" * 9]
                )
            case _:
                other = rng.choice(list(SEEDS.values()))
                made[at:] = other[rng.randrange(len(other) + 1) :]
    return bytes(made)


EXPECTED = {
    "whole": [200],
    "pipelined": [200] * 4,
    "many pipelined": [200] * 200,
    "thousands pipelined": [200] * 3150,
    "chunked": [200],
    "chunks of one byte": [200],
    "chunks with extensions": [200],
    "a length beyond the limit": [413],
    "a huge length": [400],
    "two lengths": [400],
    "a length and chunks": [400],
    "a negative length": [400],
    "NUL bytes": [400],
    "NUL bytes in the body": [400],
    "HTTP/1.0": [200],
    "HTTP/2": [400],
    "another protocol": [400],
    "an unknown method": [400],
    "an expectation": [100, 200],
    "a head alone": [405],
}


def statuses(received: bytes) -> list[int]:
    return [int(code) for code in re.findall(rb"HTTP/1\.1 (\d{3}) ", received)]


def test_bytes_that_are_hardly_http_do_no_harm(server: RunningServer) -> None:
    rng = random.Random(1)
    for name, expected in EXPECTED.items():
        assert statuses_of(server, SEEDS[name], len(expected)) == expected, name
    seen = {name: statuses(send(server, data, random.Random(7))) for name, data in SEEDS.items()}
    for _ in range(20_000 if FULL else 150):
        data = mutated(rng.choice(list(SEEDS.values())), rng)
        codes = statuses(send(server, data, rng))
        assert all(code < 500 for code in codes), (data, codes)
        seen["mutated"] = [*seen.get("mutated", []), *codes]
    assert all(code < 500 for codes in seen.values() for code in codes), seen
    assert {200, 400} <= set(seen["mutated"])
    errors = [line for line in server.log if "Exception in ASGI" in line or "Traceback" in line]
    assert not errors, "".join(errors)
