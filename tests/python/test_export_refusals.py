"""``quire export``: what is refused before anything is written, in one line that names it."""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import quire
import torch
from test_export_contents import NORM, SMALL, as_bin, module_of

INDEX = "pytorch_model.bin.index.json"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return as_bin(module_of(SMALL), tmp_path / "source")


def refusal(source: Any, target: Path, **arguments: Any) -> str:
    with pytest.raises((ValueError, OSError)) as error:
        quire.export(source, target, **arguments)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_member_of_the_config_that_is_there_twice(source: Path, tmp_path: Path) -> None:
    config = source / "config.json"
    config.write_text('{"rms_norm_eps": 0.5, ' + config.read_text()[1:])
    assert refusal(source, tmp_path / "out") == f"{config}: 'rms_norm_eps' is there twice"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"weight_map": {"a": "b.bin"}, "weight_map": {}}', "'weight_map' is there twice"),
        ('{"weight_map": {"a": "b.bin", "a": "c.bin"}}', "'a' is there twice"),
        ("{}", "'weight_map' is missing"),
        ('{"weight_map": [1]}', "'weight_map' must be an object with each tensor's file, got [1]"),
        ('{"weight_map": {"a": "b.bin"}}', "weight_map of 'a' names 'b.bin', which is not there"),
    ],
)
def test_indices(text: str, message: str, source: Path, tmp_path: Path) -> None:
    (source / "pytorch_model.bin").unlink()
    (source / INDEX).write_text(text)
    assert refusal(source, tmp_path / "out") == f"{source / INDEX}: {message}"


def test_an_architecture_is_refused_before_weights_are_read(source: Path, tmp_path: Path) -> None:
    config = source / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"architectures": ["FooForCausalLM"]}))
    seen: list[str] = []
    message = refusal(source, tmp_path / "out", transform=lambda name, tensor: seen.append(name))
    assert message.startswith(f"{config}: architecture 'FooForCausalLM' is not supported")
    assert seen == []


class Evil:
    def __reduce__(self) -> Any:
        return (os.system, ("touch evil-was-here",))


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_code_in_a_pickle_by_itself_is_named_and_not_run(
    protocol: int, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = source / "pytorch_model.bin"
    file.write_bytes(pickle.dumps({"a": Evil()}, protocol=protocol))
    command = [sys.executable, "-m", "quire", "export", str(source), "out"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stderr == (
        f"quire: {file}: refused, because its pickle names posix.system, which is no tensor and might run "
        "code; save model.state_dict() alone\n"
    )
    assert not (tmp_path / "evil-was-here").exists()


def test_a_destination_is_named_as_it_was_given(source: Path, tmp_path: Path) -> None:
    assert refusal(source, Path("/proc/x")) == "/proc/x: cannot be written: No such file or directory"
    (tmp_path / "file").write_text("")
    target = tmp_path / "file" / "out"
    assert re.fullmatch(
        rf"{re.escape(str(target))}: cannot be written: (File exists|Not a directory)",
        refusal(source, target),
    )


def test_arguments_that_lead_nowhere(source: Path, tmp_path: Path) -> None:
    tokenizer, nothing = tmp_path / "tokenizer", tmp_path / "nothing"
    tokenizer.mkdir()
    (tokenizer / "tokenizer_config.json").write_text("{}")
    out = tmp_path / "out"
    assert refusal(source, out, tokenizer=tokenizer).startswith(
        f"tokenizer: {str(tokenizer)!r} has no tokenizer.json, tekken.json, "
    )
    assert refusal(source, out, config=nothing).startswith(f"config: no {str(nothing)!r}; give a config.json")
    assert refusal("", out).startswith("source: is empty; give a file of torch.save")
    shutil.copy(Path(quire.__file__).parent / "demo_model" / "tokenizer.json", tokenizer)
    assert (quire.export(source, out, tokenizer=tokenizer) / "tokenizer.json").exists()


def test_a_state_dict_is_still_written(source: Path, tmp_path: Path) -> None:
    assert NORM in torch.load(source / "pytorch_model.bin")
    assert (quire.export(source, tmp_path / "out") / "config.json").exists()
