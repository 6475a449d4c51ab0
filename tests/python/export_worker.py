"""Exports what it is told to, and says how each ended: a process that may be lost to what is in a file.

    python export_worker.py ROOT WARM ...      then on standard input, a line each: SOURCE

A source is a file or a directory; those of the command line come first: torch loads some of itself late.
Answers are lines of JSON: ``ended`` is "written", "refused" or "raised", ``text`` the error's, ``did`` what
was done meanwhile and must not be, ``kib`` by how much the process grew at its largest.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import sys
import traceback
import types
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import quire
import torch
from export_mutations import CODE, MARKER

# What no reader of files does. Opening to write is looked at by its path.
FORBIDDEN = re.compile(
    r"os\.(system|exec|posix_spawn|fork|forkpty|spawn|kill|symlink|link|putenv|chown)|subprocess\.Popen"
    r"|pty\.spawn|socket\.(connect|bind)|shutil\.(move|chown|unpack_archive)|webbrowser\.open|ftplib\..*|urllib\.Request"
)  # fmt: skip


class Watch:
    """Sees what is run, imported and written."""

    def __init__(self, root: Path) -> None:
        self._root = str(root) + "/"
        self._is_on = False
        self.did: list[str] = []
        sys.addaudithook(self._see)

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        self.did = []
        self._is_on = True
        try:
            yield
        finally:
            self._is_on = False

    def _see(self, event: str, args: tuple[Any, ...]) -> None:
        if not self._is_on:
            return
        is_forbidden = bool(FORBIDDEN.fullmatch(event))
        if event == "open" and isinstance(args[0], str) and isinstance(args[2], int):
            writes = args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
            is_forbidden = bool(writes) and not os.path.abspath(args[0]).startswith((self._root, "/dev/null"))
        elif event == "pickle.find_class":
            is_forbidden = f"{args[0]}.{args[1]}" in CODE
        elif event == "import":
            is_forbidden = str(args[0]).split(".")[0] == MARKER
        elif event == "exec" and isinstance(args[0], types.CodeType):
            is_forbidden = any(MARKER in name for name in names_of(args[0]))
        if is_forbidden:
            self.did.append(f"{event} {args!r:.300}")


def names_of(code: types.CodeType) -> Iterator[str]:
    """What it says, as names or as constants."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from names_of(constant)
        elif isinstance(constant, str) and code.co_names:
            yield constant


def memory_kib(key: str) -> int:
    found = re.search(rf"{key}:\s*(\d+)", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1])


def export(source: Path, target: Path, watch: Watch) -> dict[str, Any]:
    Path("/proc/self/clear_refs").write_text("5")  # the highest is counted from here
    before = memory_kib("VmRSS")
    ended, text = "written", ""
    try:
        with watch(), warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            quire.export(source, target)
    except ValueError as error:
        ended, text = "refused", str(error)
    except BaseException:
        ended, text = "raised", traceback.format_exc()[-4000:]
    shutil.rmtree(target, ignore_errors=True)
    return {"ended": ended, "text": text[:4001], "did": watch.did, "kib": memory_kib("VmHWM") - before}


def main() -> None:
    root = Path(sys.argv[1])
    torch.set_num_threads(1)
    watch = Watch(root)
    for warm in sys.argv[2:]:
        export(Path(warm), root / "out", watch)
    print("{}", flush=True)
    for line in sys.stdin:
        print(json.dumps(export(Path(line.rstrip("\n")), root / "out", watch)), flush=True)


if __name__ == "__main__":
    main()
