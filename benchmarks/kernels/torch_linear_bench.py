"""torch.nn.functional.linear (oneDNN) at the shapes of quire_kernel_bench's Linear, for comparison."""

import statistics
import time

import torch


def measure(m: int, n: int, k: int, seconds: float = 0.5) -> float:
    """The median time of a call, with weights that no cache holds."""
    copies = max(1, (600 << 20) // (2 * n * k))
    weights = [torch.rand(n, k, dtype=torch.bfloat16) for _ in range(copies)]
    x = torch.rand(m, k, dtype=torch.bfloat16)
    times: list[float] = []
    while sum(times) < seconds or len(times) < 2 * copies:
        start = time.perf_counter()
        torch.nn.functional.linear(x, weights[len(times) % copies])
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main() -> None:
    torch.set_grad_enabled(False)
    shapes = [(3072, 2048), (2048, 2048), (11264, 2048), (2048, 5632)]
    for m in (1, 8, 32, 512):
        for n, k in [*shapes, *([(32000, 2048)] if m <= 8 else [])]:
            t = measure(m, n, k)
            gigabytes, gigaflops = 2 * n * k / t / 1e9, 2 * m * n * k / t / 1e9
            print(f"{m:4} {n:6} {k:5} {t * 1e6:9.0f} us {gigabytes:6.1f} GB/s {gigaflops:8.0f} GFLOP/s")


if __name__ == "__main__":
    main()
