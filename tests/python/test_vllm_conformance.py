"""The scheduler decides what vLLM's decides; tests/conformance says how that is compared."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CONFORMANCE = ROOT / "tests" / "conformance"


@pytest.fixture(scope="session")
def runner(build_dir: Path) -> Path:
    program = build_dir / "tests" / "tools" / "quire_trace_runner"
    if not program.is_file():
        pytest.skip(f"{program} was not built: run `make test-cpp`, or set QUIRE_BUILD_DIR")
    return program


@pytest.fixture(scope="session")
def vllm_python() -> Path:
    """Python with vLLM's scheduler: $QUIRE_VLLM_PYTHON, or where setup_vllm.sh puts it."""
    python = Path(os.environ.get("QUIRE_VLLM_PYTHON", ROOT / ".venv-vllm" / "bin" / "python"))
    if not python.is_file():
        pytest.skip(f"no vLLM in {python}: run tests/conformance/setup_vllm.sh, or set QUIRE_VLLM_PYTHON")
    return python


def compare(*arguments: str | Path) -> None:
    command = [sys.executable, CONFORMANCE / "compare.py", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_recorded_answers_of_vllm_are_repeated(runner: Path) -> None:
    compare("--recorded", CONFORMANCE / "recorded.jsonl", "--runner", runner)


def test_200_random_traces_are_scheduled_as_vllm_does(runner: Path, vllm_python: Path) -> None:
    compare("--seeds", "0:200", "--runner", runner, "--vllm-python", vllm_python)


@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        (['{"step": 1}'], "stdin:1: the document stands before any config"),
        (['{"config": {"num_blocks": 9}}'], "stdin:1: config.max_num_seqs is missing"),
        (['{"config": '], "stdin:1: not valid JSON"),
        (["", '{"config": {"blocks": 9}}'], "stdin:2: config.blocks is not a key we know"),
    ],
)
def test_trace_runner_names_the_line_it_cannot_read(runner: Path, lines: list[str], complaint: str) -> None:
    done = subprocess.run([runner], input="\n".join(lines), capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert complaint in done.stderr
