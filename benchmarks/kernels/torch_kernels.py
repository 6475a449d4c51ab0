#!/usr/bin/env python3
"""PyTorch's kernels on a CUDA device, bf16, at shapes of quire_cuda_ops_bench and quire_cuda_attention_bench.

    torch_kernels.py [linear | decode | prefill]...      all by default

linear: torch.nn.functional.linear, which is cuBLAS's, with the weights of a layer of Llama 3.1 8B. decode,
prefill: scaled_dot_product_attention, 32 query heads and 8 KV heads of 128, by the quickest of the backends
that take them. Keys and values are contiguous there, paged in Quire.

A row is a CUDA graph of calls, whose arguments together are more than the L2 cache holds; the median of its
replays.
"""

from __future__ import annotations

import statistics
import sys
import warnings
from collections.abc import Callable

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import linear, scaled_dot_product_attention

CACHE_BYTES = 300e6
HEADS, KV_HEADS, HEAD_SIZE = 32, 8, 128
BACKENDS = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}


def product(x: torch.Tensor, weights: list[torch.Tensor]) -> Callable[[int], torch.Tensor]:
    """Of x and the i-th weight."""
    return lambda i: linear(x, weights[i])


def microseconds(call: Callable[[int], object], copies: int) -> float:
    """The median time of call(i), for copies i of its arguments in turn."""
    calls = max(copies, 4)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for i in range(copies):
            call(i)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(calls):
            call(i % copies)
    times: list[float] = []
    for _ in range(18):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1000 / calls)
    return statistics.median(times[3:])


def random(*shape: int) -> torch.Tensor:
    """Of the device, in bf16."""
    return torch.randn(*shape, dtype=torch.bfloat16, device="cuda")


def linears() -> None:
    """Products of one to 8,192 rows with each weight of a layer."""
    print(f"{'linear':<24} {'us':>9} {'GB/s':>8} {'TFLOP/s':>8}")
    for n, k in [(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)]:
        copies = max(2, int(CACHE_BYTES / (2 * n * k)))
        weights = [random(n, k) for _ in range(copies)]
        for rows in (1, 16, 64, 256, 8192):
            x = random(rows, k)
            us = microseconds(product(x, weights), copies)
            name = f"{n} x {k} T={rows}"
            print(
                f"{name:<24} {us:9.2f} {2 * n * k / us / 1e3:8.0f} {2 * rows * n * k / us / 1e6:8.1f}",
                flush=True,
            )


def attention_us(batch: int, queries: int, context: int) -> tuple[float, str]:
    """Of the quickest backend, and which that is."""
    bytes_of_one = 4 * batch * KV_HEADS * context * HEAD_SIZE
    copies = max(1, min(64, int(CACHE_BYTES / bytes_of_one)))
    query = random(batch, HEADS, queries, HEAD_SIZE)
    keys = [random(batch, KV_HEADS, context, HEAD_SIZE) for _ in range(copies)]
    values = [random(batch, KV_HEADS, context, HEAD_SIZE) for _ in range(copies)]
    best = (float("inf"), "none")
    for name, backend in BACKENDS.items():
        if name == "math" and best[1] != "none":
            continue  # takes the whole square of scores

        def call(i: int) -> torch.Tensor:
            return scaled_dot_product_attention(
                query, keys[i], values[i], is_causal=queries > 1, enable_gqa=True
            )

        try:
            with sdpa_kernel([backend]):
                best = min(best, (microseconds(call, copies), name))
        except RuntimeError:  # the backend does not take these
            torch.cuda.synchronize()
    return best


def decode() -> None:
    """One query a row."""
    print(f"{'decode':<24} {'us':>9} {'TB/s':>8} backend")
    for batch, context in [(1, 1024), (1, 8192), (8, 4096), (64, 1024), (64, 4096), (256, 1024), (256, 4096)]:
        us, backend = attention_us(batch, 1, context)
        num_bytes = 4 * batch * KV_HEADS * context * HEAD_SIZE
        print(f"{batch:4} x {context:<17} {us:9.2f} {num_bytes / us / 1e6:8.2f} {backend}", flush=True)


def prefill() -> None:
    """Whole prompts."""
    print(f"{'prefill':<24} {'us':>9} {'TFLOP/s':>8} backend")
    for batch, length in [(1, 2048), (1, 8192), (4, 8192), (16, 1024)]:
        us, backend = attention_us(batch, length, length)
        flops = 2 * batch * length * length * HEADS * HEAD_SIZE  # causality leaves half
        print(f"{batch:4} x {length:<17} {us:9.1f} {flops / us / 1e6:8.0f} {backend}", flush=True)


PARTS = {"linear": linears, "decode": decode, "prefill": prefill}


def main() -> None:
    """Of the parts that are named."""
    chosen = sys.argv[1:] or list(PARTS)
    for name in chosen:
        if name not in PARTS:
            sys.exit(f"no such part: {name} (there are: {', '.join(PARTS)})")
    torch.manual_seed(0)
    warnings.filterwarnings("ignore", module=__name__)  # why a backend does not take something
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}")
    for name in chosen:
        PARTS[name]()


if __name__ == "__main__":
    main()
