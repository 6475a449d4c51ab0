"""Builds what changed and runs the C++ tests of its rooms: the inner loop.

    python tools/check.py [--preset cpu] [ROOM ...]

A room is a folder of cpp/src, or ``kernels`` (csrc) or ``triton`` (triton_backend). Without any: those of the
files that differ from HEAD. ``--preset cuda`` compiles kernels for devices too, and runs their tests where
one is there.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Rooms that are tested through those that use them.
TESTED_BY = {
    "chat": ["chat", "engine"],
    "layers": ["models", "worker", "weights"],
    "models": ["models", "worker", "weights", "executor"],
    "sampler": ["worker"],
}
PROGRAMS = {"kernels": "tests/kernels/quire_kernel_tests", "triton": "tests/triton/quire_triton_tests"}
CPP_TESTS = "tests/cpp/quire_cpp_tests"


def git(*arguments: str) -> list[str]:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def changed_rooms() -> set[str]:
    rooms = set()
    for name in [*git("diff", "--name-only", "HEAD"), *git("ls-files", "--others", "--exclude-standard")]:
        match name.split("/"):
            case ["cpp", "src", room, _, *_] | ["tests", "cpp", room, _, *_]:
                rooms.add("scheduler" if room == "scenarios" else room)
            case ["csrc", *_] | ["tests", "kernels", *_]:
                rooms.add("kernels")
            case ["triton_backend", *_] | ["tests", "triton", _, *_]:
                rooms.add("triton")
            case ["cpp", "include", *_]:
                rooms.update(["engine", "triton"])
    return rooms


def tests_in(program: Path, folders: set[str]) -> list[str]:
    """The names of the tests whose source is in one of these folders of tests/cpp."""
    with tempfile.TemporaryDirectory() as directory:
        listing = Path(directory) / "tests.json"
        command = [str(program), "--gtest_list_tests", f"--gtest_output=json:{listing}"]
        subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
        suites = json.loads(listing.read_text())["testsuites"]
    return [
        f"{suite['name']}.{test['name']}"
        for suite in suites
        for test in suite["testsuite"]
        if any(f"tests/cpp/{folder}/" in test["file"] for folder in folders)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--preset", default="cpu")
    parser.add_argument("rooms", nargs="*", metavar="ROOM")
    arguments = parser.parse_args()
    rooms = set(arguments.rooms) or changed_rooms()
    known = {p.name for p in (ROOT / "cpp" / "src").iterdir() if p.is_dir()} | set(PROGRAMS)
    if unknown := rooms - known:
        parser.error(f"no room {', '.join(sorted(unknown))}; there are {', '.join(sorted(known))}")
    if not rooms:
        sys.exit("nothing differs from HEAD in a room; name one")

    build = ROOT / "build" / arguments.preset
    programs = [PROGRAMS[room] for room in sorted(rooms) if room in PROGRAMS]
    folders = {folder for room in rooms - set(PROGRAMS) for folder in TESTED_BY.get(room, [room])}
    if folders:
        programs.append(CPP_TESTS)
    # CMake and Ninja may be the virtual environment's.
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([os.environ["PATH"], str(Path(sys.executable).parent)]),
    }

    def run(*command: str) -> None:
        """Whoever fails has said why, unless a signal ended it."""
        code = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
        if code:
            sys.exit(f"signal {-code} ended {command[0]}" if code < 0 else 1)

    if not (build / "build.ninja").is_file():
        run("cmake", "--preset", arguments.preset)
    run("cmake", "--build", str(build), "--target", *(Path(program).name for program in programs))
    for program in programs:
        command = [str(build / program), "--gtest_brief=1"]
        if program == CPP_TESTS:
            chosen = tests_in(build / program, folders)
            if not chosen:
                sys.exit(f"no test in tests/cpp/{{{','.join(sorted(folders))}}}")
            command.append("--gtest_filter=" + ":".join(chosen))
            environment["CUDA_VISIBLE_DEVICES"] = ""  # tests/run_gpu.sh runs those of a device
        run(*command)


if __name__ == "__main__":
    main()
