"""The quire command, as a person runs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from paths import ROOT
from quire import LLM, SamplingParams
from quire.cli import main


def quire(*args: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "quire.cli", *args],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_run_answers_with_the_bundled_model(demo_model: Path) -> None:
    done = quire("run", "Who are you?")
    message = {"role": "user", "content": "Who are you?"}
    params = SamplingParams(temperature=0, max_tokens=256)
    expected = LLM(demo_model).chat([message], params, use_tqdm=False)[0].outputs[0].text
    assert done.returncode == 0, done.stderr
    assert done.stdout == expected + "\n"


def test_an_adapter_computes_with_the_model() -> None:
    adapters = ROOT / "tests" / "python" / "data" / "adapters"
    sailor = ["--lora", str(adapters / "sailor")]
    assert quire("run", "List the days of the week.", *sailor).stdout.startswith("Ahoy! Monday, ")
    done = quire("chat", *sailor, stdin="What is 7 plus 8?\n")
    assert done.stdout == "Ahoy! 7 plus 8 is 15. Fair winds!\n"
    done = quire("run", "Hi", "--lora", str(adapters))
    assert done.returncode == 1
    assert done.stderr == f"quire: {adapters}: has no adapter_config.json, which peft saves beside " + (
        "adapter_model.safetensors\n"
    )
    done = quire("run", "Hi", "--lora", str(adapters / "json"), "--max-lora-rank", "4")
    assert "has rank 8, and max_lora_rank is 4: raise it" in done.stderr


def test_run_reads_standard_input_and_continues_raw_text() -> None:
    args = ("run", "--raw", "--max-tokens", "8", "--stats")
    typed = quire(*args, "Once upon a time")
    piped = quire(*args, "-", stdin="Once upon a time")
    assert typed.stdout == piped.stdout
    assert "8 tokens in" in typed.stderr


def test_random_weights_answer_something_else() -> None:
    args = ("run", "--raw", "--max-tokens", "8", "--device", "cpu", "Once upon a time")
    random = quire(*args, "--load-format", "dummy", "--gpu-memory-utilization", "0.5")
    assert random.returncode == 0, random.stderr
    assert random.stdout != quire(*args).stdout
    assert random.stdout == quire(*args, "--load-format", "dummy").stdout


def test_chat_remembers_the_conversation() -> None:
    done = quire("chat", "--max-tokens", "40", stdin="My name is Mira.\nWhat is my name?\n/exit\n")
    assert done.returncode == 0, done.stderr
    assert "Mira" in done.stdout.splitlines()[-1]


def test_errors_are_one_line(tmp_path: Path) -> None:
    for args in (
        ("run", "hello", "--model", str(tmp_path / "none")),
        ("run", "hello", "--model", str(tmp_path)),
        ("run", "hello", "--temperature", "-1"),
        ("run", "--raw", ""),
        ("run", "hello", "--device", "tpu"),
        ("run", "hello", "--load-format", "gguf"),
        ("run", "hello", "--gpu-memory-utilization", "2"),
    ):
        done = quire(*args)
        assert done.returncode == 1
        assert done.stdout == ""
        assert len(done.stderr.splitlines()) == 1, done.stderr
        assert done.stderr.startswith("quire: ")


@pytest.mark.parametrize(
    "line",
    [
        "",
        "frobnicate",
        "export",
        "export a b --dtype int8",
        "replay",
        "collect-env --no-such",
        "run --trust-remote-code hi",
        "run --quantization awq hi",
    ],
)
def test_a_usage_error_is_one_line(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(line.split())
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert said.count("\n") == 1 and said.startswith("quire") and said.endswith(" --help\n")
    assert said.count("leave it out") <= 1


def test_version_is_the_packages() -> None:
    from importlib.metadata import version

    import quire as package

    assert quire("--version").stdout.strip() == version("quire") == package.__version__


def test_python_m_quire_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "quire", "run", "--raw", "--max-tokens", "4", "Once"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stdout == quire("run", "--raw", "--max-tokens", "4", "Once").stdout != ""
    assert (done.returncode, done.stderr) == (0, "")


def shell(line: str) -> subprocess.CompletedProcess[bytes]:
    """What a shell makes of a line whose $quire is the command."""
    command = f"quire='{sys.executable} -m quire.cli'; {line}"
    return subprocess.run(["bash", "-c", command], capture_output=True, check=False, timeout=60)


def test_closed_streams_and_bytes_that_are_no_text_are_one_line() -> None:
    for line, status, said in (
        ("$quire run --max-tokens 2 hi >&-", 0, b""),
        ("$quire run - <&-", 1, b"quire: standard input is closed; give the prompt as an argument\n"),
        ("$quire chat <&-", 0, b""),
        (r"$quire run $'\xff'", 1, b"quire: prompt must be valid Unicode; character 0 is the lone surrogate"),
        (r"printf '\xff' | $quire run -", 1, b"quire: prompt must be valid Unicode"),
        (r"$quire run hi --model $'\xff'", 1, b"quire: --model: model must be valid Unicode"),
        (r"$quire replay $'\xff'", 1, b"quire: file must be valid Unicode"),
        ("$quire replay /", 1, b"quire: cannot read the recording /\n"),
        ("$quire simulate --rate nan", 1, b"quire: options: Out of range float values"),
        ("$quire triton --model ''", 1, b"quire: model is empty"),
    ):
        done = shell(line)
        assert done.returncode == status, (line, done.stderr)
        assert done.stderr.startswith(said), (line, done.stderr)
        assert done.stderr.count(b"\n") == (status != 0), (line, done.stderr)
