"""Which locks could be deleted without a test noticing? Each is left out by itself, under ThreadSanitizer.

    python tools/drop_locks.py [--work DIRECTORY] [--jobs N] [--only PATTERN] [--tests PATTERN]

In a copy of the sources every ``std::lock_guard`` becomes one that an environment variable switches off: one
build serves all. The tests say which locks they take; of each lock, its tests are run without it until one
fails, hangs or reports a race. What nobody misses is listed at the end, with its place. ``std::unique_lock``
is left alone: whoever waits on a condition needs it.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ["cpp/src", "triton_backend/src"]
PROGRAMS = ["tests/cpp/quire_cpp_tests", "tests/triton/quire_triton_tests"]
LOCK = re.compile(r"const std::lock_guard(?:<[^>]*>)? (\w+)\((.+)\);")
TIMEOUT_S = 40

HEADER = """#pragma once
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <unistd.h>
namespace drop_locks {
inline const int dropped = std::getenv("DROPPED_LOCK") ? std::atoi(std::getenv("DROPPED_LOCK")) : -1;
struct Taken {
  std::atomic<bool> ids[1024] = {};
  ~Taken() {
    const char* directory = std::getenv("TAKEN_LOCKS");
    if (directory == nullptr) return;
    char path[4096];
    std::snprintf(path, sizeof path, "%s/%d.%p", directory, getpid(), static_cast<void*>(this));
    if (std::FILE* file = std::fopen(path, "w")) {
      for (int i = 0; i < 1024; ++i)
        if (ids[i].load(std::memory_order_relaxed)) std::fprintf(file, "%d\\n", i);
      std::fclose(file);
    }
  }
};
inline Taken taken;
template <typename Mutex>
class Guard {
 public:
  Guard(Mutex& mutex, int id) : mutex_(mutex), locks_(id != dropped) {
    taken.ids[id].store(true, std::memory_order_relaxed);
    if (locks_) mutex_.lock();
  }
  ~Guard() {
    if (locks_) mutex_.unlock();
  }
 private:
  Mutex& mutex_;
  const bool locks_;
};
}  // namespace drop_locks
"""


def rewrite(work: Path) -> list[str]:
    """Makes the locks of the copy switchable; returns where each is."""
    header = work / "drop_locks.h"
    header.write_text(HEADER)
    places: list[str] = []
    for folder in FOLDERS:
        for path in sorted((work / folder).rglob("*")):
            if path.suffix not in {".h", ".cpp", ".cc"}:
                continue
            lines = path.read_text().splitlines()
            found = False
            for number, line in enumerate(lines):
                if match := LOCK.search(line):
                    guard = f"const drop_locks::Guard {match[1]}({match[2]}, {len(places)});"
                    lines[number] = line.replace(match[0], guard)
                    places.append(f"{path.relative_to(work)}:{number + 1}: {line.strip()}")
                    found = True
            if found:
                path.write_text(f'#include "{header}"\n' + "\n".join(lines) + "\n")
    return places


def tests_of(program: Path, work: Path) -> list[str]:
    listing = subprocess.run(
        [program, "--gtest_list_tests"], cwd=work, capture_output=True, text=True, check=True
    )
    suite, tests = "", []
    for line in listing.stdout.splitlines():
        name = line.split("#")[0].rstrip()
        if name.endswith("."):
            suite = name
        elif name.startswith("  "):
            tests.append(suite + name.strip())
    return tests


def run_test(program: Path, test: str, work: Path, **environment: str) -> bool:
    """Whether it passes."""
    command = [str(program), f"--gtest_filter={test}", "--gtest_brief=1"]
    tsan = {"TSAN_OPTIONS": "halt_on_error=1 report_bugs=1", "CUDA_VISIBLE_DEVICES": ""}
    try:
        done = subprocess.run(
            command,
            cwd=work,
            env={**os.environ, **tsan, **environment},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--work", type=Path, default=Path("/tmp/quire-drop-locks"))
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--only", default="", help="locks whose place has this regular expression in it")
    parser.add_argument("--tests", default="", help="likewise the tests' names")
    arguments = parser.parse_args()
    work: Path = arguments.work.resolve()
    shutil.rmtree(work, ignore_errors=True)
    ignored = shutil.ignore_patterns(".git", "build", ".venv*", "__pycache__", ".*_cache")
    shutil.copytree(ROOT, work, ignore=ignored, symlinks=True)
    places = rewrite(work)
    for command in (
        ["cmake", "--preset", "tsan"],
        ["cmake", "--build", "--preset", "tsan", "-j", str(arguments.jobs)],
    ):
        built = subprocess.run(command, cwd=work, capture_output=True, text=True, check=False)
        if built.returncode:
            sys.exit(built.stdout[-4000:] + built.stderr[-4000:])

    programs = [work / "build/tsan" / program for program in PROGRAMS]
    tests = [(p, t) for p in programs for t in tests_of(p, work) if re.search(arguments.tests, t)]
    takers: dict[int, list[tuple[int, int]]] = defaultdict(list)  # how many locks it takes, and its number

    def trace(number: int) -> None:
        program, test = tests[number]
        directory = work / "taken" / str(number)
        directory.mkdir(parents=True)
        passed = run_test(program, test, work, TAKEN_LOCKS=str(directory))
        if not passed:
            print(f"fails with all its locks: {test}", flush=True)
            return
        taken = {int(line) for file in directory.iterdir() for line in file.read_text().split()}
        for lock in taken:
            takers[lock].append((len(taken), number))

    kept = []
    with ThreadPoolExecutor(arguments.jobs) as pool:
        list(pool.map(trace, range(len(tests))))
        for lock, place in enumerate(places):
            if not re.search(arguments.only, place):
                continue
            # Tests that take few locks first: they are about this one.
            waiting = [tests[number] for _, number in sorted(takers[lock])]
            missed_by = ""
            for begin in range(0, len(waiting), arguments.jobs):
                batch = waiting[begin : begin + arguments.jobs]
                runs = [pool.submit(run_test, *test, work, DROPPED_LOCK=str(lock)) for test in batch]
                failed = [test for (_, test), run in zip(batch, runs, strict=True) if not run.result()]
                if failed:
                    missed_by = failed[0]
                    break
            verdict = f"missed by {missed_by}" if missed_by else f"NOT MISSED by {len(waiting)} tests"
            print(f"{verdict}: {place}", flush=True)
            if not missed_by:
                kept.append(place)
    print(f"{len(kept)} of {len(places)} locks are missed by no test", *kept, sep="\n  ")
    sys.exit(1 if kept else 0)


if __name__ == "__main__":
    main()
