"""What a client may send before there is a request, and how long it may take: over sockets of our own."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Iterator

import pytest
from serving import RunningServer, running_server

GET = b"GET /health HTTP/1.1\r\nHost: a\r\n"
BODY = json.dumps({"prompt": "Once", "max_tokens": 900, "ignore_eos": True, "stream": True, "n": 8}).encode()
POST = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(BODY)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """At a socket in the file system: the kernel holds 200 KiB of one, and megabytes of TCP's."""
    path = str(tmp_path_factory.mktemp("socket") / "socket")
    with running_server("--client-timeout", "1", "--max-header-bytes", "20000", "--uds", path) as server:
        yield server


def connect(server: RunningServer) -> socket.socket:
    made = socket.socket(socket.AF_UNIX)
    made.settimeout(20)
    made.connect(server.url)
    return made


def answer(client: socket.socket) -> tuple[int, bytes]:
    """All until the server closes: the status, and what it said."""
    received = b""
    try:
        while data := client.recv(1 << 16):
            received += data
    except ConnectionResetError:
        pass
    if not received:
        return 0, b""
    return int(received.split(b" ", 2)[1]), received


def exchange(server: RunningServer, *parts: bytes) -> tuple[int, bytes]:
    with connect(server) as client:
        for part in parts:
            client.sendall(part)
        return answer(client)


def test_headers_up_to_the_limits_are_read(server: RunningServer) -> None:
    close = b"Connection: close\r\n\r\n"
    many = b"".join(b"X-%d: a\r\n" % i for i in range(254))
    for head in (GET + b"X: " + b"a" * 19_000 + b"\r\n", GET + many, GET + b"X: " + b"\xff\x80" + b"\r\n"):
        assert exchange(server, head + close)[0] == 200


@pytest.mark.parametrize("in_parts", [False, True])
def test_longer_and_more_headers_are_refused(server: RunningServer, in_parts: bool) -> None:
    heads = {
        "a value": b"X: " + b"a" * 70_000 + b"\r\n\r\n",
        "a name": b"X" * 70_000 + b": a\r\n\r\n",
        "many": b"".join(b"X-%d: a\r\n" % i for i in range(10_000)) + b"\r\n",
        "one too many": b"".join(b"X-%d: a\r\n" % i for i in range(256)) + b"\r\n",
        "without an end": b"X: " + b"a" * 70_000,
    }
    for what, head in heads.items():
        data = GET + head
        size = 4000 if in_parts else len(data)
        status, said = exchange(server, *(data[i : i + size] for i in range(0, len(data), size)))
        assert status == 431, what
        error = json.loads(said.partition(b"\r\n\r\n")[2])["error"]
        assert ("20000 bytes" in error["message"]) or ("256 headers" in error["message"]), what
    line = b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n"
    assert exchange(server, line)[0] == 431


def test_what_is_no_http_is_refused_in_the_form_of_other_errors(server: RunningServer) -> None:
    status, said = exchange(server, b"\x16\x03\x01\x00\xff nonsense\r\n\r\n")
    assert status == 400
    assert json.loads(said.partition(b"\r\n\r\n")[2])["error"]["type"] == "invalid_request_error"


def test_a_header_that_does_not_come_is_waited_for_a_while(server: RunningServer) -> None:
    begin = time.monotonic()
    with connect(server) as client:
        client.settimeout(0.2)
        said = b""
        for byte in GET * 10:  # one at a time
            client.sendall(bytes([byte]))
            try:
                said = client.recv(1000)
                break
            except TimeoutError:
                continue
    assert b" 408 " in said and b"did not come within 1 s" in said
    assert 0.9 < time.monotonic() - begin < 8
    begin = time.monotonic()
    assert exchange(server) == (0, b"")  # of who says nothing there is nothing to say
    assert 0.9 < time.monotonic() - begin < 8


def test_a_body_that_does_not_come_is_refused_and_its_rest_waited_for_no_longer(
    server: RunningServer,
) -> None:
    begin = time.monotonic()
    with connect(server) as client:
        client.sendall(POST + BODY[:10])
        said = b""
        while b"}}" not in said:
            said += client.recv(1000)
        assert b" 408 " in said and b"the body did not come within 1 s" in said
        client.settimeout(0.2)
        with pytest.raises(ConnectionError):
            for byte in BODY[10:40]:  # one at a time
                client.sendall(bytes([byte]))
                with contextlib.suppress(TimeoutError):
                    if client.recv(100) == b"":
                        raise ConnectionError
    assert 1.9 < time.monotonic() - begin < 8


def test_requests_behind_a_body_in_the_same_bytes_are_no_header(server: RunningServer) -> None:
    """A long body, and in what comes with its end the beginning of another request."""
    body = json.dumps({"prompt": "a", "max_tokens": 1, "user": "b" * 300_000}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body)
    data = head + body + GET
    with connect(server) as client:
        client.sendall(data)
        said = client.recv(65536)  # the first answer, or the beginning of it
        assert said.startswith(b"HTTP/1.1 200 ")
        client.sendall(b"Connection: close\r\n\r\n")
        while data := client.recv(65536):
            said += data
        assert said.count(b"HTTP/1.1 200 ") == 2


def test_a_client_that_reads_nothing_is_given_up_and_one_that_reads_slowly_is_not(
    server: RunningServer,
) -> None:
    with connect(server) as silent, connect(server) as slow:
        for client in (silent, slow):
            client.sendall(POST + BODY)
        received = b""
        end = time.monotonic() + 30
        # What ends the last chunk may come apart from it.
        while not received.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"):
            assert time.monotonic() < end, received[-100:]
            received += slow.recv(4096)
            time.sleep(0.01)
        status, said = answer(silent)
        assert status == 200 and b"[DONE]" not in said
