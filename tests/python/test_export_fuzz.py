"""``quire export`` of damaged files: whatever is in one, it is written, or refused by its name.

Nothing in a file is run, no process ends by it, and little memory and time are taken. A case is made of the
seed, its form and its number; QUIRE_FUZZ_SECONDS goes on for so long, with QUIRE_FUZZ_SEED.
"""

from __future__ import annotations

import io
import itertools
import json
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import quire
import torch
from export_mutations import changed
from safetensors.torch import save_file
from test_export_archives import in_program, rewrite
from tiny_directories import CONFIG, SHAPES
from transformers import LlamaConfig, LlamaForCausalLM

SECONDS = float(os.environ.get("QUIRE_FUZZ_SECONDS", "0"))
SEED = os.environ.get("QUIRE_FUZZ_SEED", "1")
NUM_CASES = 600 if os.environ.get("QUIRE_TESTS") == "full" else 20  # of each form
MAX_SECONDS, MAX_KIB = 30.0, 256 << 10


class Worker:
    """A process that exports, and another one when it is gone."""

    def __init__(self, root: Path, warm: list[Path]) -> None:
        here = root / "here"
        here.mkdir()
        program = str(Path(__file__).with_name("export_worker.py"))
        self._command = [sys.executable, program, str(root), *map(str, warm)]
        self._process: subprocess.Popen[str] | None = None
        self._here = here

    def export(self, source: Path) -> dict[str, Any]:
        if self._process is None:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=self._here
            )
            assert self._answer(10 * MAX_SECONDS) == {}
        assert self._process.stdin is not None
        self._process.stdin.write(f"{source}\n")
        self._process.stdin.flush()
        return self._answer(MAX_SECONDS)

    def _answer(self, seconds: float) -> dict[str, Any]:
        assert self._process is not None and self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], seconds)
        if answer := self._process.stdout.readline() if ready else "":
            return dict(json.loads(answer))
        status = self.close()
        ended = f"lost by {signal.Signals(-status).name}" if ready and status < 0 else "too slow"
        return {"ended": ended, "text": "", "did": [], "kib": 0}

    def close(self) -> int:
        if self._process is None:
            return 0
        self._process.kill()
        status = self._process.wait()
        self._process = None
        return status


def weights() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


def write_state_dict(directory: Path, **options: Any) -> None:
    module = torch.nn.Module()
    state = module.state_dict() | weights()  # with attributes, as modules' have them
    torch.save({"epoch": 3, "model": state}, directory / "pytorch_model.bin", **options)


def write_shards(directory: Path) -> None:
    state = weights()
    parts = {"a.bin": list(SHAPES)[:5], "b.bin": list(SHAPES)[5:]}
    for part, names in parts.items():
        torch.save({name: state[name] for name in names}, directory / part)
    index = {"weight_map": {name: part for part, names in parts.items() for name in names}}
    (directory / "pytorch_model.bin.index.json").write_text(json.dumps(index))


def write_meta_llama(directory: Path) -> None:
    (directory / "config.json").unlink()
    (directory / "params.json").write_text(
        '{"dim": 32, "n_layers": 1, "n_heads": 2, "n_kv_heads": 1, "norm_eps": 1e-5, "max_seq_len": 64}'
    )
    names = {"embed_tokens": "tok_embeddings", "input_layernorm": "attention_norm"}
    names |= {"post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "feed_forward.w1"}
    names |= {"mlp.down_proj": "feed_forward.w2", "mlp.up_proj": "feed_forward.w3"}
    names |= {f"self_attn.{part}_proj": f"attention.w{part}" for part in "qkvo"}
    state = {}
    for name, value in weights().items():
        for old, new in names.items():
            name = name.replace(old, new)
        state[name.removeprefix("model.")] = value
    torch.save(state, directory / "consolidated.00.pth")


class Logits(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        given = {key: value for key, value in CONFIG.items() if key != "architectures"}
        self.inner = LlamaForCausalLM(LlamaConfig(**given, attn_implementation="eager")).eval()

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.inner(input_ids=input_ids, use_cache=False).logits


def write_program(directory: Path) -> None:
    (directory / "config.json").unlink()
    with torch.no_grad():
        program = torch.export.export(Logits(), (torch.zeros(1, 12, dtype=torch.int64),), strict=False)
    torch.export.save(program, directory / "model.pt2")


class Sums(torch.nn.Module):  # type: ignore[misc]
    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"y": x.sum(dim=0) * x.shape[0]}


def write_sizes(directory: Path) -> None:
    """A program of no model's, with a size that is a symbol."""
    sizes = {"x": {0: torch.export.Dim("n", min=2, max=64)}}
    program = torch.export.export(Sums(), (torch.zeros(4, 3),), dynamic_shapes=sizes)
    torch.export.save(program, directory / "model.pt2")


FORMS: dict[str, Callable[[Path], object]] = {
    "archive": write_state_dict,
    "legacy": lambda directory: write_state_dict(directory, _use_new_zipfile_serialization=False),
    "shards": write_shards,
    "safetensors": lambda directory: save_file(weights(), directory / "model.safetensors"),
    "meta": write_meta_llama,
    "program": write_program,
    "sizes": write_sizes,
}


def source_in(directory: Path) -> Path:
    archive = directory / "model.pt2"
    return archive if archive.exists() else directory


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {}
    for form, write in FORMS.items():
        made[form] = tmp_path_factory.mktemp(form)
        (made[form] / "config.json").write_text(json.dumps(CONFIG))
        write(made[form])
    return made


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


@pytest.fixture(scope="module")
def worker(root: Path, seeds: dict[str, Path]) -> Iterator[Worker]:
    worker = Worker(root, [source_in(seed) for seed in seeds.values()])
    yield worker
    worker.close()


def damaged(seed: Path, directory: Path, rng: random.Random) -> Path:
    shutil.copytree(seed, directory)
    files = sorted(directory.iterdir())
    weights = [file for file in files if file.name != "config.json"]
    file = rng.choice(weights if rng.random() < 0.8 else files)
    file.write_bytes(changed(file.read_bytes(), rng))
    return source_in(directory)


def wrong_with(answer: dict[str, Any], root: Path, source: Path, directory: Path) -> str:
    """Nothing where all is as it should be."""
    names = (f"{directory}", f"{root / 'out'}")
    if answer["ended"] not in ("written", "refused"):
        return f"{answer['ended']}\n{answer['text']}"
    if answer["ended"] == "refused" and not any(name in answer["text"] for name in names):
        return f"no file is named: {answer['text']}"
    if answer["ended"] == "refused" and len(answer["text"]) > 4000:
        return f"the error is long: {answer['text'][:400]}"
    if answer["did"]:
        return f"it did {answer['did']}"
    if answer["kib"] > MAX_KIB:
        return f"it took {answer['kib']} KiB"
    left = {path.name for path in root.rglob("*")} - {path.name for path in directory.rglob("*")}
    left -= {"here", directory.name}
    return f"left behind: {left}" if left else ""


@pytest.mark.parametrize("form", FORMS)
def test_a_seed_is_written(form: str, seeds: dict[str, Path], worker: Worker) -> None:
    """Or the test below would say nothing."""
    answer = worker.export(source_in(seeds[form]))
    assert answer["did"] == []
    if form == "sizes":
        assert "tensor 'model.embed_tokens.weight' is missing" in answer["text"]
    else:
        assert answer["ended"] == "written", answer["text"]


def without_buffer(content: bytes) -> bytes:
    config = json.loads(content)
    del config["config"]["inner.model.rotary_emb.original_inv_freq"]
    return json.dumps(config).encode()


def two_guesses(module: Any) -> None:
    """Of a view to [1, length, heads, size]: both of the last are to be found."""
    views = [node for node in module["graph"]["nodes"] if node["target"] == "torch.ops.aten.view.default"]
    views[0]["inputs"][1]["arg"]["as_ints"] = [1, 12, -1, -1]


def flat_weights(content: bytes) -> bytes:
    """All weights with one dimension."""
    config = json.loads(content)
    for payload in config["config"].values():
        payload["tensor_meta"] |= {"sizes": [{"as_int": 8}], "strides": [{"as_int": 1}]}
    return json.dumps(config).encode()


def many_positions(module: Any) -> None:
    ranges = [node for node in module["graph"]["nodes"] if node["target"] == "torch.ops.aten.arange.default"]
    ranges[0]["inputs"][0]["arg"]["as_int"] = 10**9


def other_ids(length: int) -> bytes:
    buffer = io.BytesIO()
    torch.save(((torch.zeros(1, 1, dtype=torch.int64).expand(1, length),), {}), buffer)
    return buffer.getvalue()


# What the test below has found, and what is said of it now.
FOUND: dict[str, tuple[dict[str, Callable[[bytes], bytes]], str]] = {
    "a buffer of the signature is missing": (
        {"data/constants/model_constants_config.json": without_buffer},
        "its graph cannot be read: 'inner.model.rotary_emb.original_inv_freq'; give config",
    ),
    "an embedding has one dimension": (
        {"data/weights/model_weights_config.json": flat_weights},
        "its graph cannot be read: not enough values to unpack .*; give config",
    ),
    "an operation fails": (
        in_program(two_guesses),
        "the program fails with token ids: only one dimension can be inferred; give config, and check=False",
    ),
    "an operation makes gigabytes": (
        in_program(many_positions),
        r"the program fails with token ids: its tensors would take 80\d+ bytes, the archive has \d+; give",
    ),
    "a guard fails": (
        {"data/sample_inputs/model.pt": lambda _: other_ids(1)},
        "the program fails with token ids: Guard failed: ",
    ),
    "an example is larger than the file": (
        {"data/sample_inputs/model.pt": lambda _: other_ids(10**9)},
        r"tensor '0' has shape \[1, 1000000000\] and 8000000000 bytes, 8 bytes are stored",
    ),
}


@pytest.mark.parametrize("case", FOUND)
def test_what_was_found_is_named(case: str, seeds: dict[str, Path], tmp_path: Path) -> None:
    changes, message = FOUND[case]
    source = rewrite(seeds["program"] / "model.pt2", tmp_path / "a.pt2", changes)
    with pytest.raises(ValueError, match=rf"a\.pt2: {message}"):
        quire.export(source, tmp_path / "out")
    assert list(tmp_path.iterdir()) == [source]


def test_damaged_files_are_refused_by_their_names(seeds: dict[str, Path], root: Path, worker: Worker) -> None:
    begin, ended, wrong = time.monotonic(), Counter[tuple[str, str]](), {}
    for number in itertools.count():
        if number >= NUM_CASES and time.monotonic() - begin >= SECONDS:
            break
        for form, seed in seeds.items():
            directory = root / "source"
            source = damaged(seed, directory, random.Random(f"{SEED} {form} {number}"))
            answer = worker.export(source)
            ended[form, answer["ended"]] += 1
            if what := wrong_with(answer, root, source, directory):
                wrong[f"seed {SEED}, {form} {number}"] = what
            shutil.rmtree(directory)
    assert not wrong, "\n\n".join(f"{case}: {what}" for case, what in wrong.items())
    for form in FORMS:
        assert ended[form, "refused"] > 0
        assert ended[form, "written"] > 0 or form == "sizes"
