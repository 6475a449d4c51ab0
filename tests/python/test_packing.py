"""Packed weights: engines of them answer as engines of what was packed, and processes share their memory."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from model_cases import CASES
from quantized_models import quantize
from quire import LLM, SamplingParams, pack_weights
from quire.prompts import TokensPrompt

GREEDY = SamplingParams(temperature=0, max_tokens=20, logprobs=1)
IDS = SamplingParams(temperature=0, max_tokens=20, logprobs=1, detokenize=False)
PROMPTS = ["Once upon a time", "The baker said"]
SMALL = {"max_model_len": 128, "kv_cache_memory_bytes": 16 << 20, "device": "cpu"}


def answers(model: str | Path, **engine_args: object) -> list[object]:
    outputs = LLM(model, **{**SMALL, **engine_args}).generate(PROMPTS, GREEDY, use_tqdm=False)
    return [(output.outputs[0].token_ids, output.outputs[0].cumulative_logprob) for output in outputs]


def test_a_packed_directory_answers_as_its_model(tmp_path: Path, demo_model: Path) -> None:
    packed = tmp_path / "packed"
    [first] = pack_weights(demo_model, packed, device="cpu", dtype="bfloat16")
    assert Path(first).name == "cpu-panels32-bfloat16-0-of-1.quire"
    assert not list(packed.glob("*.safetensors"))
    assert answers(packed) == answers(demo_model, dtype="bfloat16")
    # Others beside them.
    two = pack_weights(demo_model, packed, device="cpu", dtype="float32", tensor_parallel_size=2)
    assert [Path(path).name for path in two] == [f"cpu-panels32-float32-{i}-of-2.quire" for i in range(2)]
    assert answers(packed, tensor_parallel_size=2) == answers(
        demo_model, dtype="float32", tensor_parallel_size=2
    )


def test_packed_weights_go_before_those_beside_them(tmp_path: Path, demo_model: Path) -> None:
    model = shutil.copytree(demo_model, tmp_path / "model")
    expected = answers(model, dtype="bfloat16")
    pack_weights(model, model, device="cpu", dtype="bfloat16")
    weights = model / "model.safetensors"
    weights.rename(tmp_path / "away")
    assert answers(model) == expected
    (tmp_path / "away").rename(weights)
    assert answers(model, dtype="float32") == answers(demo_model, dtype="float32")


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("name", ["gpt-oss-gqa-64", "granite-moe-mha-tied", "phi3-mha-64", "opt-mha-64"])
def test_mixtures_and_weights_of_several_parts(
    name: str, ranks: int, tmp_path: Path, make_model: Callable[..., Path]
) -> None:
    model = make_model(CASES[name])
    kinds = {"dtype": "float32", "tensor_parallel_size": ranks}
    pack_weights(model, tmp_path / "packed", device="cpu", **kinds)
    prompt: list[TokensPrompt] = [{"prompt_token_ids": list(range(3, 90))}]
    both = [
        LLM(directory, skip_tokenizer_init=True, **{**SMALL, **kinds}).generate(prompt, IDS, use_tqdm=False)
        for directory in (model, tmp_path / "packed")
    ]
    loaded, mapped = (outputs[0].outputs[0] for outputs in both)
    assert (mapped.token_ids, mapped.cumulative_logprob) == (loaded.token_ids, loaded.cumulative_logprob)


@pytest.mark.parametrize("layout", ["pack-quantized", "int-quantized"])
def test_quantized_weights_are_packed(tmp_path: Path, make_model: Callable[..., Path], layout: str) -> None:
    model, packed = tmp_path / "model", tmp_path / "packed"
    quantize(make_model(CASES["qwen2-gqa-80"]), model, layout, symmetric=False)
    pack_weights(model, packed, device="cpu")
    prompt: list[TokensPrompt] = [{"prompt_token_ids": [1, 2, 3, 4]}]

    def of(model: Path) -> object:
        llm = LLM(model, skip_tokenizer_init=True, **SMALL)
        return llm.generate(prompt, GREEDY, use_tqdm=False)[0].outputs[0].token_ids

    assert of(packed) == of(model)


def test_processes_share_what_they_map(tmp_path: Path, demo_model: Path) -> None:
    pack_weights(demo_model, tmp_path / "packed", device="cpu", dtype="float32")
    code = f"""
import quire
llm = quire.LLM({str(tmp_path / "packed")!r}, max_model_len=128, kv_cache_memory_bytes=16 << 20, device="cpu")
llm.generate("Once", quire.SamplingParams(max_tokens=5), use_tqdm=False)
lines = open("/proc/self/smaps").read().split(".quire")[1].split("VmFlags")[0]
print(lines)
"""
    text = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    kib = {key: int(value) for key, value in re.findall(r"^(\w+): +(\d+) kB", text, re.MULTILINE)}
    assert kib["Rss"] > 28 << 10  # 7.3 million floats
    assert kib["Private_Dirty"] == 0


@pytest.mark.parametrize("case", ["a file", "not empty", "another model", "of one file", "full"])
def test_where_packs_cannot_go(tmp_path: Path, demo_model: Path, case: str) -> None:
    target = tmp_path / "target"
    if case == "a file":
        target.write_text("")
        expected = "is a file; give a directory"
    elif case == "not empty":
        target.mkdir()
        (target / "notes.txt").write_text("mine")
        expected = "is not empty, and holds no packed weights"
    elif case == "another model":
        target.mkdir()
        (target / "config.json").write_text("{}")
        (target / "x.quire").write_text("")
        expected = "has another config.json"
    elif case == "of one file":
        (tmp_path / "x.gguf").write_bytes(b"GGUF")
        with pytest.raises(ValueError, match="is one file; packed weights are made of directories"):
            pack_weights(tmp_path / "x.gguf", target, device="cpu")
        return
    else:
        code = f"""
import resource, signal
import quire
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
try:
    quire.pack_weights({str(demo_model)!r}, {str(target)!r}, device="cpu")
except MemoryError as error:
    print(error)
"""
        run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
        assert "cannot be written: File too large" in run.stdout
        assert not os.path.lexists(target)
        return
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ValueError, match=re.escape(expected)):
        pack_weights(demo_model, target, device="cpu")
    assert sorted(tmp_path.rglob("*")) == before
