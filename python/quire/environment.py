"""What a report of a problem should say of the machine and the installation; no names of hosts or users."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

from quire import _core

_PACKAGES = ("numpy", "tqdm", "PyYAML", "torch", "transformers", "tokenizers", "safetensors", "tritonclient")
# Of a CPU's features those that kernels are chosen by, or that people ask for.
_FEATURES = ("avx", "fma", "f16c", "avx2", "avx512", "avx_vnni", "amx", "asimd", "bf16", "i8mm", "sve")


def collect_env() -> dict[str, dict[str, Any]]:
    """Sections of names and values: versions, how the extension was built, processor, memory, limits, GPUs.

    What cannot be found out is left out. Never holds the name of the machine or of a user, a path, a serial
    number or an environment variable's value.
    """
    return {
        "quire": _build(),
        "system": _system(),
        "cpu": _cpu(),
        "memory": _memory(),
        "cgroup": _cgroup(),
        "gpus": _gpus(),
        "packages": _packages(),
    }


def format_env(env: dict[str, dict[str, Any]]) -> str:
    """One line for each value."""
    lines = []
    for section, values in env.items():
        lines += [f"{section}:", *(f"  {name}: {value}" for name, value in values.items())]
    return "\n".join(lines) + "\n"


def _build() -> dict[str, Any]:
    from quire import __version__

    info = _core.build_info()
    sets = ", ".join(info.pop("instruction_sets"))
    return {"version": __version__, **info, "instruction_sets_available": sets}


def _system() -> dict[str, Any]:
    found = {
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "kernel": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "libc": " ".join(platform.libc_ver()).strip(),
        "virtual_environment": sys.prefix != sys.base_prefix,
    }
    for line in _lines("/etc/os-release"):
        if line.startswith("PRETTY_NAME="):
            found["distribution"] = line.partition("=")[2].strip('"')
    return found


def _cpu() -> dict[str, Any]:
    found: dict[str, Any] = {}
    flags: list[str] = []
    for line in _lines("/proc/cpuinfo"):
        name, _, value = (part.strip() for part in line.partition(":"))
        if name == "model name":
            found.setdefault("model", value)
        elif name in ("flags", "Features") and not flags:
            flags = value.split()
    found["cores"] = os.cpu_count()
    if hasattr(os, "sched_getaffinity"):
        found["cores_of_this_process"] = len(os.sched_getaffinity(0))
    found["features"] = " ".join(sorted(flag for flag in flags if flag.startswith(_FEATURES)))
    return found


def _memory() -> dict[str, Any]:
    wanted = {
        "MemTotal": "total",
        "MemAvailable": "available",
        "SwapTotal": "swap",
        "Hugepagesize": "huge_page",
    }
    found = {}
    for line in _lines("/proc/meminfo"):
        name, _, value = line.partition(":")
        if name in wanted:
            found[wanted[name]] = _size(int(value.split()[0]) * 1024)
    return found


def _cgroup() -> dict[str, Any]:
    """The limits of the control group, of either version."""
    root = Path("/sys/fs/cgroup")
    found: dict[str, Any] = {}
    for path in ("memory.max", "memory/memory.limit_in_bytes"):
        for line in _lines(root / path):
            unlimited = not line.isdigit() or int(line) >= 1 << 60
            found["memory"] = "no limit" if unlimited else _size(int(line))
    quota = next(iter(_lines(root / "cpu.max")), "").split()
    if not quota:
        v1 = (_lines(root / "cpu" / f"cpu.cfs_{part}_us") for part in ("quota", "period"))
        quota = [line for lines in v1 for line in lines[:1]]
    if len(quota) == 2 and quota[1].isdigit():
        limited = quota[0].isdigit()
        found["cores"] = f"{int(quota[0]) / int(quota[1]):g}" if limited else "no limit"
    return found


def _gpus() -> dict[str, Any]:
    query = ["name", "memory.total", "compute_cap", "driver_version"]
    try:
        done = subprocess.run(
            ["nvidia-smi", f"--query-gpu={','.join(query)}", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            check=True,
            timeout=20,
        )
    except (OSError, subprocess.SubprocessError):
        return {"count": 0}
    lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    return {"count": len(lines), **{str(i): line for i, line in enumerate(lines)}}


def _packages() -> dict[str, Any]:
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _lines(path: str | Path) -> list[str]:
    try:
        return Path(path).read_text(errors="replace").splitlines()
    except OSError:
        return []


def _size(num_bytes: int) -> str:
    return f"{num_bytes / (1 << 30):.1f} GiB" if num_bytes >= 1 << 30 else f"{num_bytes / (1 << 20):g} MiB"
