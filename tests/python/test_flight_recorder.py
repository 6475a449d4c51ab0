"""A recording replaces a file or nothing: no device, no link, nobody's temporary file."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from quire import LLM, SamplingParams
from quire.cli import main


@pytest.fixture(scope="module")
def llm(demo_model: Path) -> Iterator[LLM]:
    engine = LLM(demo_model, max_model_len=64)
    engine.generate("Once", SamplingParams(max_tokens=4), use_tqdm=False)
    yield engine


def refused(llm: LLM, path: Path, why: str) -> None:
    with pytest.raises(ValueError, match=f"cannot write a recording to {path}: .*{why}") as error:
        llm.dump_flight_recorder(path)
    assert "\n" not in str(error.value)


def test_what_is_no_regular_file_is_left_alone(llm: LLM, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("precious")
    link, fifo, folder = tmp_path / "link", tmp_path / "fifo", tmp_path / "folder"
    link.symlink_to(target)
    os.mkfifo(fifo)
    folder.mkdir()
    refused(llm, link, "it is a symbolic link; give a new name, or a regular file to replace")
    refused(llm, fifo, "it is a device, pipe or socket")
    refused(llm, folder, "it is a directory")
    assert link.is_symlink() and fifo.is_fifo() and target.read_text() == "precious"
    assert {p.name for p in tmp_path.iterdir()} == {"target", "link", "fifo", "folder"}


def test_a_file_is_replaced_and_its_neighbours_are_not(llm: LLM, tmp_path: Path) -> None:
    recording, neighbour = tmp_path / "a.rec", tmp_path / "a.rec.tmp"
    recording.write_text("old")
    neighbour.write_text("precious")
    llm.dump_flight_recorder(recording)
    assert main(["replay", str(recording)]) == 0
    assert neighbour.read_text() == "precious"
    assert {p.name for p in tmp_path.iterdir()} == {"a.rec", "a.rec.tmp"}


def test_a_failed_write_says_why_and_leaves_nothing(llm: LLM, tmp_path: Path) -> None:
    recording = tmp_path / "a.rec"
    recording.write_text("old")
    refused(llm, tmp_path / "none" / "a.rec", "No such file or directory")
    # What a full disk does: a write fails in the middle.
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, limit[1]))
    try:
        refused(llm, recording, "File too large")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, before)
    assert recording.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.rec"]


def test_a_directory_for_recordings_must_be_there(demo_model: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"flight_recorder_dir: no directory '.*none'; make it first"):
        LLM(demo_model, flight_recorder_dir=str(tmp_path / "none"))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_the_command_says_in_a_line_that_the_disk_is_full() -> None:
    for args in (["run", "--raw", "--max-tokens", "4", "Once"], ["--version"]):
        with Path("/dev/full").open("w") as full:
            done = subprocess.run(
                [sys.executable, "-m", "quire.cli", *args],
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
                check=False,
                timeout=60,
            )
        assert done.returncode == 1, args
        assert done.stderr == "quire: [Errno 28] No space left on device\n"
