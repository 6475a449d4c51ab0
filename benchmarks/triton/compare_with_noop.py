"""What quire costs inside Triton Inference Server, beside a backend that computes nothing.

    python benchmarks/triton/compare_with_noop.py --build build/default --work-dir /tmp/bench

Both backends are made of the same adapters (benchmarks/triton/noop_backend.cc), served by one program, and
called by the stock tritonclient; the same requests also go through the C++ API without a server.

- latency: p50 of requests with max_tokens 1, one after another, the models taking turns.
- processor time: of all the server's threads but those that compute and schedule, per streamed token; the
  no-op model sends at the pace that quire's had.
- throughput: 16 gRPC streams of 100 tokens of the random 0.67 B shape (benchmarks/cpu/compare_peers.py), and
  the same through the C++ API, taking turns. Where all cores compute, what the client uses is taken from the
  engine, so beside the stock client there is one that does not parse what it reads.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from quire.triton.server import find_server

ROOT = Path(__file__).resolve().parents[2]
PROMPT = "Once upon a time"
PORTS = {"http": 18100, "grpc": 18101, "metrics": 18102}
# The engine's own, with or without a server: what they do is not the backend's doing.
ENGINE_THREADS = {"quire-core", "quire-compute", "quire-worker"}


def write_model(repository: Path, name: str, backend: str, decoupled: bool, **parameters: object) -> None:
    (repository / name / "1").mkdir(parents=True, exist_ok=True)
    lines = [f'backend: "{backend}"', f"model_transaction_policy {{ decoupled: {str(decoupled).lower()} }}"]
    lines += [
        f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'
        for key, value in parameters.items()
    ]
    (repository / name / "config.pbtxt").write_text("\n".join(lines) + "\n")


@contextmanager
def served(build: Path, repository: Path, models: list[str]) -> Iterator[int]:
    """Runs a server with these models; yields its process id."""
    backends = repository.parent / "backends"
    backends.mkdir(exist_ok=True)
    for name, folder in (("quire", "triton_backend"), ("quire_noop", "benchmarks/triton")):
        link = backends / name
        link.unlink(missing_ok=True)
        link.symlink_to((build / folder / "backends" / name).resolve())
    command = [str(find_server()), f"--model-repository={repository}", f"--backend-directory={backends}"]
    command += ["--model-control-mode=explicit", *(f"--load-model={model}" for model in models)]
    for kind, port in PORTS.items():
        command += [f"--{kind}-address=127.0.0.1", f"--{kind}-port={port}"]
    command += ["--allow-gpu-metrics=false", "--exit-timeout-secs=4"]
    started = time.perf_counter()
    with (repository.parent / "server.log").open("w") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{PORTS['http']}/v2/health/ready", timeout=1)
                break
            except OSError:
                if server.poll() is not None or time.perf_counter() - started > 60:
                    raise RuntimeError((repository.parent / "server.log").read_text()) from None
                time.sleep(0.01)
        seconds = time.perf_counter() - started
        print(f"  (server ready in {seconds:.2f} s, resident {resident_mb(server.pid):.0f} MB)")
        yield server.pid
    finally:
        server.terminate()
        server.wait()


def resident_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def thread_seconds(pid: int) -> dict[int, tuple[str, float]]:
    """Processor time of each thread, by its id."""
    times = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            name = (task / "comm").read_text().strip()
            times[int(task.name)] = (name, int((task / "schedstat").read_text().split()[0]) / 1e9)
        except OSError:
            continue  # it has ended
    return times


def parameters(max_tokens: int) -> str:
    return json.dumps({"temperature": 0, "max_tokens": max_tokens, "ignore_eos": True})


def inputs(client: Any, max_tokens: int, stream: bool, prompt_ids: list[int] | None = None) -> list[Any]:
    if prompt_ids is None:
        tensors = {"text_input": np.array([PROMPT], dtype=object)}
    else:
        tensors = {"input_ids": np.array(prompt_ids, dtype=np.int32)}
    tensors["sampling_parameters"] = np.array([parameters(max_tokens)], dtype=object)
    tensors["stream"] = np.array([stream])
    made = []
    for name, array in tensors.items():
        datatype = {"O": "BYTES", "b": "BOOL", "i": "INT32"}[array.dtype.kind]
        made.append(client.InferInput(name, list(array.shape), datatype))
        made[-1].set_data_from_numpy(array)
    return made


def measure_latency(build: Path, repository: Path, demo: Path, count: int) -> None:
    for name, backend in (("latency_quire", "quire"), ("latency_noop", "quire_noop")):
        extra = {"model": demo, "max_model_len": 512} if backend == "quire" else {}
        write_model(repository, name, backend, False, **extra)
    rows: dict[str, dict[str, float]] = {}
    with served(build, repository, ["latency_quire", "latency_noop"]):
        http = httpclient.InferenceServerClient(f"127.0.0.1:{PORTS['http']}")
        grpc = grpcclient.InferenceServerClient(f"127.0.0.1:{PORTS['grpc']}")
        for door, client, module in (("HTTP", http, httpclient), ("gRPC", grpc, grpcclient)):
            request = inputs(module, 1, False)
            samples: dict[str, list[float]] = {"latency_quire": [], "latency_noop": []}
            for i in range(count + 50):
                for model, seconds in samples.items():
                    start = time.perf_counter()
                    client.infer(model, request)
                    if i >= 50:
                        seconds.append(time.perf_counter() - start)
            rows[door] = {model: statistics.median(seconds) * 1e6 for model, seconds in samples.items()}
        http.close()
        grpc.close()
    program = build / "benchmarks/triton/triton_api_bench"
    api = float(subprocess.check_output([program, demo, PROMPT, "latency", str(count)]))
    print("\n| p50, us | no-op | quire | added | C++ API | added / C++ API |\n|---|---|---|---|---|---|")
    for door, row in rows.items():
        added = row["latency_quire"] - row["latency_noop"]
        print(
            f"| {door} | {row['latency_noop']:.0f} | {row['latency_quire']:.0f} | {added:.0f} | {api:.0f} "
            f"| {added / api:.2f} |"
        )


def stream_grpc(model: str, streams: int, tokens: int, prompt_ids: list[int] | None = None) -> float:
    """Runs the streams at once; returns the seconds until the last has ended."""
    clients, finished = [], threading.Semaphore(0)
    failures: list[object] = []

    def on_response(result: Any, error: Any) -> None:
        if error is not None:
            failures.append(error)
            finished.release()
        elif result.get_response().parameters["triton_final_response"].bool_param:
            finished.release()

    for _ in range(streams):
        client = grpcclient.InferenceServerClient(f"127.0.0.1:{PORTS['grpc']}")
        client.start_stream(on_response)
        clients.append(client)
    request = inputs(grpcclient, tokens, True, prompt_ids)
    start = time.perf_counter()
    for client in clients:
        client.async_stream_infer(model, request, enable_empty_final_response=True)
    for _ in clients:
        finished.acquire()
    seconds = time.perf_counter() - start
    for client in clients:
        client.stop_stream()
        client.close()
    if failures:
        raise RuntimeError(str(failures[0]))
    return seconds


async def _read_stream(channel: grpc.aio.Channel, request: bytes) -> None:
    """One stream, from the request's bytes to the response that carries the final flag."""
    call = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")()
    await call.write(request)
    while b"triton_final_response\x12\x02\x08\x01" not in await call.read():
        pass
    await call.done_writing()


def stream_grpc_unparsed(model: str, streams: int, tokens: int, prompt_ids: list[int]) -> float:
    """Streams like stream_grpc, over one connection, with a client that looks at bytes only."""
    tensors = inputs(grpcclient, tokens, True, prompt_ids)
    message = grpcclient.service_pb2.ModelInferRequest(model_name=model)
    message.parameters["triton_enable_empty_final_response"].bool_param = True
    for tensor in tensors:
        message.inputs.add(name=tensor.name(), datatype=tensor.datatype(), shape=tensor.shape())
        message.raw_input_contents.append(tensor._get_content())
    request = message.SerializeToString()

    async def read_all() -> float:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{PORTS['grpc']}") as channel:
            start = time.perf_counter()
            await asyncio.gather(*(_read_stream(channel, request) for _ in range(streams)))
            return time.perf_counter() - start

    return asyncio.run(read_all())


def stream_http(model: str, streams: int, tokens: int) -> float:
    body = json.dumps(
        {"text_input": PROMPT, "stream": True, "sampling_parameters": parameters(tokens)}
    ).encode()
    url = f"http://127.0.0.1:{PORTS['http']}/v2/models/{model}/generate_stream"

    def read_all() -> None:
        with urllib.request.urlopen(urllib.request.Request(url, data=body)) as response:
            while response.read1(65536):
                pass

    threads = [threading.Thread(target=read_all) for _ in range(streams)]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - start


def measure_processor_time(build: Path, repository: Path, demo: Path, rounds: int) -> None:
    doors: dict[str, Callable[[str, int, int], float]] = {"gRPC": stream_grpc, "HTTP": stream_http}
    print("\n| streams | door | no-op, us/token | quire, us/token | added |\n|---|---|---|---|---|")
    for streams, tokens in ((1, 400), (8, 400)):
        for door, stream in doors.items():
            write_model(repository, "stream_quire", "quire", True, model=demo, max_model_len=512)
            quire, seconds = processor_time(
                build, repository, "stream_quire", stream, streams, tokens, rounds
            )
            interval = int(seconds / tokens * 1e6)
            write_model(repository, "stream_noop", "quire_noop", True, token_interval_us=interval)
            noop, _ = processor_time(build, repository, "stream_noop", stream, streams, tokens, rounds)
            print(f"| {streams} | {door} | {noop:.1f} | {quire:.1f} | {quire - noop:.1f} |")


def processor_time(
    build: Path,
    repository: Path,
    model: str,
    stream: Callable[[str, int, int], float],
    streams: int,
    tokens: int,
    rounds: int,
) -> tuple[float, float]:
    """Microseconds a token, of the server's threads but the engine's own; and seconds a round."""
    with served(build, repository, [model]) as pid:
        stream(model, streams, tokens)
        before = thread_seconds(pid)
        seconds = [stream(model, streams, tokens) for _ in range(rounds)]
        used: dict[str, float] = {}
        for thread, (name, after) in thread_seconds(pid).items():
            used[name] = used.get(name, 0.0) + after - before.get(thread, (name, 0.0))[1]
    num_tokens = streams * tokens * rounds
    shares = {
        name: f"{time / num_tokens * 1e6:.1f}" for name, time in used.items() if time / num_tokens > 2e-7
    }
    print(f"  ({model}: us/token by thread {shares})")
    outside = sum(time for name, time in used.items() if name not in ENGINE_THREADS)
    return outside / num_tokens * 1e6, statistics.median(seconds)


def measure_throughput(build: Path, repository: Path, work_dir: Path, rounds: int) -> None:
    sys.path.insert(0, str(ROOT / "benchmarks" / "cpu"))
    from peer_models import make_model

    model = work_dir / "model-0.67b"
    if not (model / "config.json").exists():
        make_model(model)
    write_model(
        repository, "shape", "quire", True, model=model, max_model_len=512, skip_tokenizer_init="true"
    )
    prompt_ids = [int(i) for i in np.random.default_rng(0).integers(10, 30000, 32)]
    program = build / "benchmarks/triton/triton_api_bench"
    clients = {"stock client": stream_grpc, "unparsed": stream_grpc_unparsed}
    best = dict.fromkeys(["C++ API", *clients], 0.0)
    for _ in range(rounds):
        with served(build, repository, ["shape"]):
            stream_grpc("shape", 16, 10, prompt_ids)
            for name, stream in clients.items():
                for _ in range(2):
                    before = time.process_time()
                    seconds = stream("shape", 16, 100, prompt_ids)
                    print(f"  ({name}: {seconds:.2f} s, of the client's {time.process_time() - before:.2f})")
                    best[name] = max(best[name], 1600 / seconds)
        ids = ",".join(map(str, prompt_ids))
        out = subprocess.check_output([program, model, f"ids:{ids}", "throughput", "16", "100"])
        best["C++ API"] = max(best["C++ API"], float(out))
    print("\n| 16 streams of 100 tokens, 0.67 B | tokens/s | ratio |\n|---|---|---|")
    for name, rate in best.items():
        print(f"| {name} | {rate:.1f} | {rate / best['C++ API']:.3f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "cpu")
    parser.add_argument("--work-dir", type=Path, required=True)
    parser.add_argument("--only", choices=["latency", "processor-time", "throughput"])
    parser.add_argument("--count", type=int, default=1000, help="requests whose latency is taken")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores")
    repository = args.work_dir / "repository"
    repository.mkdir(parents=True, exist_ok=True)
    demo = ROOT / "python" / "quire" / "demo_model"
    if args.only in (None, "latency"):
        measure_latency(args.build, repository, demo, args.count)
    if args.only in (None, "processor-time"):
        measure_processor_time(args.build, repository, demo, args.rounds)
    if args.only in (None, "throughput"):
        measure_throughput(args.build, repository, args.work_dir, min(args.rounds, 3))


if __name__ == "__main__":
    main()
