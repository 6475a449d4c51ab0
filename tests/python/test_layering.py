"""Who may include whom: the table, enforced. A new edge is a line here, and a line in a review."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "cpp" / "src"

# Besides itself, util, and cpp/include, which every room may include. "csrc" stands for the kernels' headers.
PERMITTED: dict[str, set[str]] = {
    "util": set(),
    "formats": set(),
    "messages": set(),
    "tokenizer": {"formats"},
    "chat": {"formats"},
    "parsers": {"formats"},
    "request": {"messages"},
    "grammar": {"request", "messages", "formats"},
    "kv_cache": {"request", "messages"},
    "scheduler": {"request", "kv_cache", "messages"},
    "device": {"csrc"},
    "distributed": {"device", "csrc"},
    "weights": {"formats", "device", "csrc"},
    "layers": {"device", "distributed", "weights", "messages", "formats", "csrc"},
    "models": {"layers", "weights", "messages", "formats", "csrc"},
    "connectors": {"formats"},
    "sampler": {"device", "messages", "csrc"},
    "worker": {
        "models", "layers", "sampler", "device", "distributed", "messages", "weights", "formats", "csrc",
    },
    "executor": {"worker", "models", "messages", "distributed", "device", "layers", "formats"},
    "observability": {"messages"},
    "simulator": {"scheduler", "kv_cache", "request", "executor", "messages", "formats"},
    "engine": {
        "scheduler", "kv_cache", "executor", "messages", "request", "tokenizer", "chat", "formats",
        "grammar", "observability",
    },
    "http_api": {"engine", "formats"},
    "c_api": {"formats"},
}  # fmt: skip

INCLUDE = re.compile(r'^\s*#\s*include\s+["<]([^">]+)[">]', re.MULTILINE)


def includes(path: Path) -> list[str]:
    return INCLUDE.findall(path.read_text())


def sources(folder: Path) -> list[Path]:
    return [p for p in sorted(folder.rglob("*")) if p.suffix in {".h", ".cpp", ".cc", ".cu", ".cuh"}]


def room_of(include: str) -> str | None:
    """The room an include leads to; None for a public header or the standard library's."""
    if include.startswith("quire/kernels/"):
        return "csrc"
    first = include.split("/")[0]
    return first if "/" in include and (SOURCE / first).is_dir() else None


def test_every_room_is_listed() -> None:
    assert {p.name for p in SOURCE.iterdir() if p.is_dir() and sources(p)} == set(PERMITTED)


@pytest.mark.parametrize("room", PERMITTED)
def test_a_room_includes_only_what_it_may(room: str) -> None:
    allowed = PERMITTED[room] | {room, "util"}
    bad = [
        f"{path.relative_to(ROOT)} includes {include}"
        for path in sources(SOURCE / room)
        for include in includes(path)
        if (target := room_of(include)) is not None and target not in allowed
    ]
    assert not bad


def test_kernels_depend_on_nothing_of_ours() -> None:
    bad = [
        f"{path.relative_to(ROOT)} includes {include}"
        for path in sources(ROOT / "csrc")
        for include in includes(path)
        if (include.startswith("quire/") and not include.startswith("quire/kernels/"))
        or room_of(include) not in {None, "csrc"}
    ]
    assert not bad


def test_public_headers_need_only_the_standard_library() -> None:
    bad = [
        f"{path.name} includes {include}"
        for path in sources(ROOT / "cpp" / "include")
        for include in includes(path)
        if not include.startswith("quire/")
        and ("/" in include or include.endswith(".h"))
        and not (path.name == "quire.h" and include in ("stddef.h", "stdint.h"))
    ]
    assert not bad


@pytest.mark.parametrize("door", ["python/bindings", "triton_backend/src"])
def test_a_door_uses_the_public_headers_only(door: str) -> None:
    bad = [
        f"{path.name} includes {include}"
        for path in sources(ROOT / door)
        for include in includes(path)
        if room_of(include) is not None
    ]
    assert not bad


def test_json_library_stays_in_its_rooms() -> None:
    bad = [
        str(path.relative_to(ROOT))
        for folder in (
            SOURCE,
            ROOT / "cpp" / "include",
            ROOT / "csrc",
            ROOT / "python" / "bindings",
        )
        for path in sources(folder)
        if any(include.startswith("nlohmann/") for include in includes(path))
        and path.parent not in {SOURCE / "formats", SOURCE / "util"}
    ]
    assert not bad


# The time of day jumps when somebody sets it: it is told, and nothing waits or ends by it.
TIME_OF_DAY = re.compile(
    r"system_clock|CLOCK_REALTIME|gettimeofday|\bstd::time\(|\btime\.time\(|\btime\.time_ns\(|datetime\.now\("
)
TOLD = {
    "cpp/src/c_api/request_handle.cpp",  # "created" of an answer
    "cpp/src/engine/engine_core.cpp",  # the head of a recording
    "cpp/src/observability/metric_families.cpp",  # the value of lora_requests_info
    "python/quire/serve/answers.py",  # "created" of an answer
    "python/quire/serve/tracing.py",  # the times of spans, from those of the engine's clock
}


def test_nothing_waits_by_the_time_of_day() -> None:
    files = [
        path
        for folder in ("cpp/src", "cpp/include", "csrc", "triton_backend", "python/bindings", "python/quire")
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in (".cpp", ".cc", ".h", ".cu", ".cuh", ".py")
    ]
    found = {str(path.relative_to(ROOT)) for path in files if TIME_OF_DAY.search(path.read_text())}
    assert found == TOLD
