"""The server under load and among failures: overload, clients that vanish, full disks, no descriptors.

QUIRE_TESTS=full does each for minutes or in full numbers, QUIRE_TESTS=million sends a million tiny requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from serving import RunningServer, metric, running_server

TIER = os.environ.get("QUIRE_TESTS", "")
FULL = TIER in ("full", "million")
PATH = "/v1/completions"
SHORT: dict[str, Any] = {"prompt": "Once", "max_tokens": 16, "ignore_eos": True, "temperature": 0}
LONG: dict[str, Any] = {"prompt": "Once", "max_tokens": 1500, "ignore_eos": True, "stream": True}
TINY: dict[str, Any] = {"prompt": "a", "max_tokens": 1}
MAX_RUNNING = 8
MAX_WAITING = 16


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """At a socket in the file system, of which the kernel keeps 200 KiB for a client that does not read."""
    folder = tmp_path_factory.mktemp("server")
    with running_server(
        "--uds", str(folder / "socket"), "--client-timeout", "1", "--log-file", str(folder / "log"),
        "--log-requests", "--enable-admin",
        "--max-num-seqs", str(MAX_RUNNING), "--max-queued-requests", str(MAX_WAITING),
        "--flight-recorder-dir", str(folder), "--flight-recorder-signal", str(int(signal.SIGUSR2)),
    ) as server:  # fmt: skip
        yield server


@pytest.fixture
def process(server: RunningServer) -> psutil.Process:
    return psutil.Process(server.process.pid)


@pytest.fixture
def http(server: RunningServer) -> Iterator[httpx.Client]:
    transport = httpx.HTTPTransport(uds=server.url)
    with httpx.Client(transport=transport, base_url="http://quire", timeout=30) as client:
        yield client


@pytest.fixture(autouse=True)
def nothing_is_left(http: httpx.Client) -> Iterator[None]:
    """The engine gives the same tokens afterwards, runs nothing and holds no memory."""

    def answer() -> tuple[int, Any]:
        said = http.post(PATH, json=SHORT)
        return said.status_code, said.json().get("choices")

    expected = answer()
    yield
    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
        assert metric(http, f"quire:{name}", wait_for=0.0) == 0.0, name
    assert answer() == expected
    assert http.get("/health").status_code == 200


class Client:
    """A connection that is kept: a fraction of what a whole client costs."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        head = f"POST {PATH} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(data)}\r\n\r\n"
        self.writer.write(head.encode() + data)

    async def answer(self) -> tuple[int, bytes]:
        """Of one that is no stream: its status and its head."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        await self.reader.readexactly(length)
        return int(head.split(b" ", 2)[1]), head


@contextlib.asynccontextmanager
async def connected(server: RunningServer) -> AsyncIterator[Client]:
    # 2 KiB, so that a client that does not read holds little itself.
    reader, writer = await asyncio.open_unix_connection(server.url, limit=2048)
    try:
        yield Client(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 3600 if FULL else 60))


def seconds_of(http: httpx.Client, body: dict[str, Any]) -> float:
    begin = time.perf_counter()
    assert http.post(PATH, json=body).status_code == 200
    return time.perf_counter() - begin


def test_ten_times_what_can_be_served_is_refused_quickly_and_served_as_promised(
    server: RunningServer, process: psutil.Process, http: httpx.Client
) -> None:
    """What is admitted waits for at most two full batches before its own: most of it has ended after four.

    If all were admitted, they would wait for thirty.
    """
    seconds = 300.0 if FULL else 4.5
    body = {**SHORT, "max_tokens": 256}
    admitted: list[float] = []
    memory: list[int] = []
    refused = 0

    async def batch() -> float:
        async with contextlib.AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(connected(server)) for _ in range(MAX_RUNNING)]
            begin = time.perf_counter()
            for client in clients:
                client.send(body)
            assert {(await client.answer())[0] for client in clients} == {200}
            return time.perf_counter() - begin

    async def press(end: float) -> None:
        nonlocal refused
        async with connected(server) as client:
            while time.perf_counter() < end:
                begin = time.perf_counter()
                client.send(body)
                status, head = await client.answer()
                assert status in (200, 429), head
                if status == 200:
                    admitted.append(time.perf_counter() - begin)
                else:
                    refused += 1
                    assert b"retry-after: 1" in head.lower()
                    await asyncio.sleep(0.5)  # half of what it was told to

    async def watch(end: float) -> None:
        while time.perf_counter() < end:
            memory.append(process.memory_info().rss >> 20)
            await asyncio.sleep(seconds / 30)

    async def overload() -> float:
        of_batch = max([await batch() for _ in range(3)])
        end = time.perf_counter() + max(seconds, 6 * of_batch)  # so that places become free, on any machine
        num_clients = 10 * (MAX_RUNNING + MAX_WAITING)
        await asyncio.gather(watch(end), *(press(end) for _ in range(num_clients)))
        return max([of_batch, *[await batch() for _ in range(3)]])

    before = seconds_of(http, body)
    of_batch = asyncio.run(overload())
    admitted.sort()
    assert len(admitted) > 30 and refused > len(admitted)
    for part, num_batches in ((0.5, 4), (0.99, 12)):
        assert admitted[int(part * len(admitted))] < num_batches * of_batch + 0.5, (part, of_batch, admitted)
    # In a few seconds most of what is new is the KV cache's, whose pages are touched one after another.
    assert max(memory[20:]) - max(memory[:10]) <= (24 if FULL else 80), memory
    assert seconds_of(http, body) < 3 * before + 0.5


def test_clients_that_read_nothing_hold_little_and_nobody_up(
    server: RunningServer, process: psutil.Process, http: httpx.Client
) -> None:
    """Of fifty streams some are refused; the rest are answered to their ends, and given up then."""
    memory, num_fds = process.memory_info().rss, process.num_fds()
    body = {**LONG, "max_tokens": 1000, "logprobs": 5}
    seconds: list[float] = []

    async def stall() -> None:
        async with contextlib.AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(connected(server)) for _ in range(50)]
            for client in clients:
                client.send(body)
            statuses = [int((await client.reader.readuntil(b"\r\n")).split()[1]) for client in clients]
            num_refused = statuses.count(429)
            assert MAX_WAITING <= statuses.count(200) == 50 - num_refused
            # Of those that are refused connections are kept.
            end = time.monotonic() + 30
            while process.num_fds() > num_fds + num_refused:
                assert time.monotonic() < end
                assert process.memory_info().rss - memory < 128 << 20
                said = await asyncio.to_thread(http.get, "/health")
                seconds.append(said.elapsed.total_seconds())
                await asyncio.sleep(0.05)
            cut = [client for client, status in zip(clients, statuses, strict=True) if status == 200]
            assert not [client for client in cut if b"[DONE]" in await client.reader.read()]

    run(stall())
    assert max(seconds) < 5.0


def test_clients_that_leave_at_any_moment_leave_nothing(
    server: RunningServer, process: psutil.Process
) -> None:
    rng = random.Random(3)
    num_fds = process.num_fds()

    async def leave() -> None:
        async with connected(server) as client:
            # With many at once there may be no room for another, which asyncio takes for a connection.
            with contextlib.suppress(OSError):
                for _ in range(rng.randrange(1, 3)):  # one behind the other, perhaps
                    client.send(rng.choice([LONG, SHORT, {**LONG, "n": 2}, {**SHORT, "prompt": ["a", "b"]}]))
            if rng.random() < 0.7:
                with contextlib.suppress(asyncio.TimeoutError, OSError):
                    await asyncio.wait_for(client.reader.read(rng.randrange(1, 500)), rng.random() * 0.03)
            if rng.random() < 0.3:
                client.writer.transport.abort()

    async def leave_often() -> None:
        for _ in range(5000 // 25 if FULL else 12):
            await asyncio.gather(*(leave() for _ in range(25)))
        end = time.monotonic() + 40
        while process.num_fds() > num_fds + 1:
            assert time.monotonic() < end
            await asyncio.sleep(0.05)

    run(leave_often())


def test_requests_behind_each_other_take_little_more_than_their_bytes(
    server: RunningServer, process: psutil.Process, http: httpx.Client
) -> None:
    """Four megabytes of the shortest ones, behind answers that do not come yet."""
    http.post("/pause")
    behind = b"GET /ping HTTP/1.1\r\n\r\n" * 11_000
    grown = 0

    async def crowd() -> None:
        nonlocal grown
        async with contextlib.AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(connected(server)) for _ in range(MAX_WAITING)]
            for client in clients:
                client.send(SHORT)
            waiting = await asyncio.to_thread(metric, http, "quire:num_requests_waiting", MAX_WAITING)
            assert waiting == MAX_WAITING
            memory = process.memory_info().rss
            for client in clients:
                client.writer.write(behind)
            for _ in range(10):
                await asyncio.sleep(0.05)
                grown = max(grown, process.memory_info().rss - memory)
            await asyncio.to_thread(http.post, "/resume")
            for client in clients:
                assert (await client.answer())[0] == 200

    try:
        run(crowd())
    finally:
        http.post("/resume")
    assert grown < 24 << 20, grown


def test_a_client_that_leaves_with_requests_behind_each_other_has_none_of_them_computed(
    server: RunningServer, http: httpx.Client
) -> None:
    num_before = metric(http, "quire:generation_tokens_total")
    num_prompts = MAX_WAITING  # more than are computed until a busy machine notices

    async def leave() -> None:
        async with connected(server) as client:
            client.send({**LONG, "stream": False, "prompt": ["Once"] * num_prompts})
            running = await asyncio.to_thread(metric, http, "quire:num_requests_running", MAX_RUNNING)
            assert running == MAX_RUNNING
            client.send(SHORT)
            await asyncio.to_thread(http.get, "/health")  # what was sent before has been read

    run(leave())
    assert metric(http, "quire:num_requests_running", wait_for=0.0) == 0.0
    num_tokens = metric(http, "quire:generation_tokens_total") - num_before
    assert num_tokens < num_prompts * LONG["max_tokens"] / 2


def test_a_client_that_is_killed_leaves_nothing(server: RunningServer, http: httpx.Client) -> None:
    body = {**LONG, "prompt": ["Once"] * 12}
    program = f"""
import httpx, sys
with httpx.Client(transport=httpx.HTTPTransport(uds={server.url!r}), base_url="http://q") as client:
    with client.stream("POST", {PATH!r}, json={body!r}) as answer:
        parts = answer.iter_bytes()  # it would end the request when it is dropped
        next(parts)
        print(answer.status_code, flush=True)
        sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as client:
        assert client.stdout is not None and client.stdout.readline() == "200\n"
        assert metric(http, "quire:num_requests_running", wait_for=MAX_RUNNING) == MAX_RUNNING
        client.kill()
    assert metric(http, "quire:num_requests_running", wait_for=0.0) == 0.0


def test_a_server_that_is_stopped_goes_on_where_it_was(
    server: RunningServer, process: psutil.Process, http: httpx.Client
) -> None:
    body = {**SHORT, "max_tokens": 300}
    whole = http.post(PATH, json=body).json()["choices"][0]["text"]
    with http.stream("POST", PATH, json={**body, "stream": True}) as answer:
        lines = answer.iter_lines()
        texts = [next(lines)]
        process.suspend()
        time.sleep(1.0)
        process.resume()
        texts += list(lines)
    events = [json.loads(line[6:]) for line in texts if line.startswith("data: {")]
    assert "".join(event["choices"][0]["text"] for event in events) == whole


def test_a_full_disk_costs_lines_and_recordings_and_no_request(
    server: RunningServer, process: psutil.Process, http: httpx.Client
) -> None:
    """A limit on files' sizes stands for the disk."""
    folder = Path(server.url).parent
    log = folder / "log"
    hard = process.rlimit(psutil.RLIMIT_FSIZE)[1]
    for _ in range(3):
        http.post(PATH, json=SHORT)
    process.rlimit(psutil.RLIMIT_FSIZE, (64, hard))
    try:
        for _ in range(20):
            assert http.post(PATH, json=SHORT).status_code == 200
        process.send_signal(signal.SIGUSR2)  # a recording, which has no room
        for _ in range(20):
            assert http.post(PATH, json=SHORT).status_code == 200
        assert http.get("/health").status_code == 200
        assert not list(folder.glob("*.rec"))
    finally:
        process.rlimit(psutil.RLIMIT_FSIZE, (hard, hard))
    http.get("/version")
    end = time.monotonic() + 60
    while "lines of the log were dropped" not in log.read_text():
        assert time.monotonic() < end
        time.sleep(0.02)
    process.send_signal(signal.SIGUSR2)
    http.post(PATH, json=SHORT)
    while not list(folder.glob("*.rec")):
        assert time.monotonic() < end
        time.sleep(0.02)


def test_without_descriptors_connections_wait_and_nothing_spins(
    server: RunningServer, process: psutil.Process, http: httpx.Client
) -> None:
    http.get("/health")  # a connection that there is already
    limits = process.rlimit(psutil.RLIMIT_NOFILE)
    num_lines = len(server.log)

    async def exhaust() -> None:
        process.rlimit(psutil.RLIMIT_NOFILE, (process.num_fds() + 5, limits[1]))
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(20):
                try:
                    client = await stack.enter_async_context(connected(server))
                    client.send(TINY)
                except OSError:
                    pass
            used = sum(process.cpu_times()[:2])
            begin = time.monotonic()
            await asyncio.sleep(0.6)
            used = (sum(process.cpu_times()[:2]) - used) / (time.monotonic() - begin)
            assert used < 0.5, "it spins"
            assert (await asyncio.to_thread(http.get, "/health")).status_code == 200
        process.rlimit(psutil.RLIMIT_NOFILE, limits)
        async with connected(server) as client:
            client.send(TINY)
            assert (await asyncio.wait_for(client.answer(), 10))[0] == 200

    try:
        run(exhaust())
    finally:
        process.rlimit(psutil.RLIMIT_NOFILE, limits)
    assert len(server.log) - num_lines < 20


def test_tiny_requests_leave_no_memory_behind(server: RunningServer, process: psutil.Process) -> None:
    count = {"million": 1_000_000, "full": 100_000}.get(TIER, 4000)
    memory: list[int] = []

    async def send(num_requests: int) -> None:
        async with connected(server) as client:
            for _ in range(num_requests):
                client.send(TINY)
                assert (await client.answer())[0] == 200

    async def send_all() -> None:
        for _ in range(8):
            await asyncio.gather(*(send(count // 8 // 8) for _ in range(8)))
            memory.append(process.memory_info().rss >> 20)

    run(send_all())
    # The first part fills what is kept: a log's buffers, prefixes, a recorder's ring.
    assert memory[-1] - memory[1] <= (16 if not FULL else 48), memory
