"""Compiles each source file of the libraries by itself, because of several at once one's includes serve all.

    python tools/compile_alone.py [BUILD]

BUILD is a configured tree with compile_commands.json and without QUIRE_UNITY: build/cpu by default. Left out
is what build/default has compiled as the first of several files: nothing stood before it there.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIBRARIES = ("cpp/src", "csrc", "triton_backend")


def complaint(entry: dict[str, str]) -> str:
    """What the compiler has against the file, or nothing. No code is made."""
    words = shlex.split(entry["command"])
    output = words.index("-o")
    command = [words[0], "-fsyntax-only", *words[1:output], *words[output + 2 :]]
    done = subprocess.run(command, cwd=entry["directory"], capture_output=True, text=True, check=False)
    return done.stderr if done.returncode else ""


def compiled_first() -> set[str]:
    """What the tree of QUIRE_UNITY has compiled ahead of others, as it is now."""
    found = set()
    for several in (ROOT / "build" / "default").glob("**/Unity/unity_*.cxx"):
        compiled = several.with_name(several.name + ".o")
        first = re.search(r'#include "(.*)"', several.read_text())
        if first and compiled.exists() and compiled.stat().st_mtime > Path(first[1]).stat().st_mtime:
            found.add(first[1])
    return found


def main() -> None:
    build = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "cpu"
    listing = build / "compile_commands.json"
    if not listing.is_file():
        sys.exit(f"no {listing}: cmake --preset cpu")
    entries = [
        entry
        for entry in json.loads(listing.read_text())
        if Path(entry["file"]).is_relative_to(ROOT)
        and str(Path(entry["file"]).relative_to(ROOT)).startswith(LIBRARIES)
    ]
    if not entries:
        sys.exit(f"{listing}: has no source of the libraries")
    done = compiled_first()
    left = [entry for entry in entries if entry["file"] not in done]
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        complaints = [text for text in threads.map(complaint, left) if text]
    print("\n".join(complaints))
    print(
        f"{len(entries)} files, {len(entries) - len(left)} compiled before, "
        f"{len(complaints)} that do not compile by themselves"
    )
    sys.exit(bool(complaints))


if __name__ == "__main__":
    main()
