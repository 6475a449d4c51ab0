"""What a process takes of processors and memory, from /proc."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Usage:
    """Of a process and its descendants, at one time."""

    time: float  # time.monotonic()
    cpu_seconds: float  # in steps of a hundredth
    main_thread_seconds: float  # of the process's first thread: the event loop of a server in Python
    memory_bytes: int  # resident, shared pages counted in each process
    peak_memory_bytes: int  # sum of each one's peak


def process_usage(pid: int) -> Usage:
    """Raises ValueError if there is no such process."""
    now = time.monotonic()
    seconds, main_thread, memory, peak = 0.0, 0.0, 0, 0
    for each in [pid, *_descendants(pid)]:
        try:
            used = _cpu_seconds(_stat(each))
            if each == pid:
                main_thread = _cpu_seconds(_stat(each, f"task/{each}/"))
            status = Path(f"/proc/{each}/status").read_text()
        except OSError as error:
            if each == pid:
                raise ValueError(f"server_pid: there is no process {pid} to be read: {error}") from None
            continue
        seconds += used
        sizes = {line.split(":")[0]: line.split()[1] for line in status.splitlines() if line.startswith("Vm")}
        memory += int(sizes.get("VmRSS", 0)) << 10
        peak += int(sizes.get("VmHWM", 0)) << 10
    return Usage(now, seconds, main_thread, memory, peak)


def _stat(pid: int, thread: str = "") -> list[str]:
    """The fields after the name, which may have blanks and brackets: state first."""
    return Path(f"/proc/{pid}/{thread}stat").read_text().rpartition(")")[2].split()


def _cpu_seconds(fields: list[str]) -> float:
    """In the program and in the kernel."""
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _descendants(pid: int) -> list[int]:
    parents: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                parents.setdefault(int(_stat(int(entry))[1]), []).append(int(entry))
            except OSError:  # it has just ended
                continue
    found: list[int] = []
    waiting = [pid]
    while waiting:
        children = parents.get(waiting.pop(), [])
        found += children
        waiting += children
    return found
