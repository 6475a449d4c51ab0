"""A tritonserver with Quire's backend: its command line, its ports, and waiting for it."""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

_LIBRARY = Path("quire", "libtriton_quire.so")
_PR_SET_PDEATHSIG = 1  # of Linux's prctl


@dataclass(frozen=True)
class Ports:
    """Where a server listens."""

    http: int
    grpc: int
    metrics: int


def backend_directory() -> Path:
    """The folder that holds ``quire/libtriton_quire.so``: ``$QUIRE_TRITON_BACKENDS``, or the package's.

    Raises RuntimeError if the library is not there.
    """
    if given := os.environ.get("QUIRE_TRITON_BACKENDS"):
        directory = Path(given).resolve()
    else:
        spec = importlib.util.find_spec("quire")  # not imported: the server needs no extension
        folders = (spec and spec.submodule_search_locations) or [str(Path(__file__).parents[1])]
        directory = Path(next(iter(folders)), "backends").resolve()
    if not (directory / _LIBRARY).is_file():
        raise RuntimeError(
            f"no Triton backend in {directory}: this package was built without it; "
            "QUIRE_TRITON_BACKENDS can name the folder that holds quire/libtriton_quire.so"
        )
    return directory


def server_command(server: Path, repository: Path, backends: Path, ports: Ports, host: str) -> list[str]:
    """The command line of a server; arguments that come later win."""
    return [
        str(server),
        f"--model-repository={repository}",
        f"--backend-directory={backends}",
        f"--http-address={host}",
        f"--grpc-address={host}",
        f"--metrics-address={host}",
        f"--http-port={ports.http}",
        f"--grpc-port={ports.grpc}",
        f"--metrics-port={ports.metrics}",
        "--allow-gpu-metrics=false",
    ]


def check_ports(http: int, grpc: int, metrics: int) -> None:
    """Raises ValueError naming what is no port."""
    for name, port in (("http_port", http), ("grpc_port", grpc), ("metrics_port", metrics)):
        if not 0 <= port <= 65535:
            raise ValueError(f"{name} must be between 0 and 65535, got {port}; 0 is a free port")


def choose_ports(host: str, http: int = 0, grpc: int = 0, metrics: int = 0) -> Ports:
    """Replaces zeros by free ports. Raises ValueError naming a port that is taken."""
    given = {"http_port": http, "grpc_port": grpc, "metrics_port": metrics}
    chosen = []
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with ExitStack() as stack:  # all are held until the last is found, so that they differ
        for name, port in given.items():
            listener = stack.enter_context(socket.socket(family))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind((host, port))
            except (OSError, OverflowError) as error:
                raise ValueError(
                    f"{name}: cannot listen on {host}:{port} ({error}); 0 is a free port"
                ) from None
            chosen.append(listener.getsockname()[1])
    return Ports(*chosen)


# A proxy of the environment's is for other machines.
open_url = urllib.request.build_opener(urllib.request.ProxyHandler({})).open


def wait_until_ready(url: str, process: subprocess.Popen[bytes], timeout: float | None = None) -> bool:
    """Waits until all models of the server at ``url`` are ready. False if it ended, or time is up."""
    end = None if timeout is None else time.monotonic() + timeout
    while process.poll() is None and (end is None or time.monotonic() < end):
        try:
            with open_url(f"{url}/v2/health/ready", timeout=1) as response:
                if response.status == 200:
                    return True
        except (urllib.error.URLError, OSError):
            pass  # not listening yet, or 400: loading
        time.sleep(0.02)
    return False


def served_models(url: str) -> list[str]:
    """The names of the models that are ready."""
    request = urllib.request.Request(f"{url}/v2/repository/index", data=b"{}", method="POST")
    with open_url(request, timeout=5) as response:
        return [entry["name"] for entry in json.load(response) if entry.get("state") == "READY"]


def url_host(host: str) -> str:
    """How a client on this machine writes the address that a server listens on."""
    reachable = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"[{reachable}]" if ":" in reachable else reachable


def serve(command: list[str], url: str, when_ready: Callable[[], None]) -> int:
    """Runs a server until it ends, and returns its exit status. It gets our SIGINT, SIGTERM and SIGHUP."""
    with _forwarded_signals() as forward_to:
        # In a session of its own, so that Ctrl-C reaches it once.
        us = os.getpid()
        process = subprocess.Popen(command, start_new_session=True, preexec_fn=lambda: _end_with_parent(us))
        forward_to(process)
        try:
            if wait_until_ready(url, process):
                when_ready()
            status = process.wait()
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    return 128 - status if status < 0 else status


def _end_with_parent(parent: int) -> None:
    """In the child: the kernel sends SIGTERM when this command is gone, even by SIGKILL."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it was quicker
        os._exit(1)


@contextmanager
def _forwarded_signals() -> Iterator[Callable[[subprocess.Popen[bytes]], None]]:
    """Catches signals from now on; those that come before there is a process reach it when there is."""
    caught: list[int] = []
    process: subprocess.Popen[bytes] | None = None

    def forward(number: int, _: object) -> None:
        caught.append(number)
        if process is not None:
            process.send_signal(number)

    def forward_to(started: subprocess.Popen[bytes]) -> None:
        nonlocal process
        process = started
        for number in caught:
            process.send_signal(number)

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, forward) for number in numbers}
    try:
        yield forward_to
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
