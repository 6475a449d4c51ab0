"""The package and a Triton server on a device: in float32 they say what they say on the CPU.

Runs where QUIRE_TEST_DEVICE names a device ("cuda"), as tests/run_gpu.sh does; needs the package with that
device's kernels, and no client: requests go through the standard library.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pieces import in_pieces
from quire import LLM, SamplingParams
from quire.model_directory import DEMO_MODEL, resolve_model
from triton_server import TritonServer, started_server

DEVICE = os.environ.get("QUIRE_TEST_DEVICE", "")
if not DEVICE:
    pytest.skip("QUIRE_TEST_DEVICE names no device", allow_module_level=True)

PROMPTS = ["Once upon a time", "The baker", "A small boat drifted past", "In the morning", "It was raining"]
MODEL = resolve_model(DEMO_MODEL)
ROOT = Path(__file__).resolve().parents[2]
LENGTH = 40
BUDGET = 1 << 30
SETTINGS: dict[str, Any] = {"dtype": "float32", "max_model_len": 512, "max_num_seqs": 16}
ON_DEVICE: dict[str, Any] = {"device": DEVICE, "gpu_memory_bytes": BUDGET, **SETTINGS}


@pytest.fixture(scope="module")
def expected() -> dict[str, str]:
    """What the CPU continues the prompts with."""
    llm = LLM(device="cpu", **SETTINGS)
    outputs = llm.generate(PROMPTS, SamplingParams(temperature=0, max_tokens=LENGTH, ignore_eos=True))
    return {prompt: output.outputs[0].text for prompt, output in zip(PROMPTS, outputs, strict=True)}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    with started_server(tmp_path_factory.mktemp("server")) as started:
        yield started


def test_quire_run_prints_the_cpus_text(expected: dict[str, str]) -> None:
    prompt = PROMPTS[0]
    command = [sys.executable, "-m", "quire.cli", "run", prompt, "--raw", "--device", DEVICE]
    command += ["--dtype", "float32", "--max-tokens", str(LENGTH), "--max-model-len", "512"]
    result = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    text = result.stdout.strip()
    assert text and expected[prompt].strip().startswith(text)  # up to the end of the story


def test_a_script_gets_the_cpus_text_from_graphs(expected: dict[str, str]) -> None:
    llm = LLM(**ON_DEVICE)
    params = SamplingParams(temperature=0, max_tokens=LENGTH, ignore_eos=True)
    outputs = llm.generate(PROMPTS, params)
    assert [output.outputs[0].text for output in outputs] == list(expected.values())
    assert llm.stats().num_full_graph_steps > LENGTH // 2
    streamed = "".join(output.outputs[0].text for output in llm.stream(PROMPTS[1], params))
    assert streamed == expected[PROMPTS[1]]


def test_experts_are_counted_as_on_the_cpu(tmp_path: Path) -> None:
    """From graphs, whose padding is nobody's."""
    model = shutil.copytree(ROOT / "tests" / "python" / "data" / "moe_model", tmp_path / "moe")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(Path(MODEL) / name, model)
    params = SamplingParams(temperature=0, max_tokens=LENGTH, ignore_eos=True)
    texts, loads = [], []
    for settings in ({"device": "cpu", **SETTINGS}, ON_DEVICE):
        llm = LLM(model, enable_prefix_caching=False, **settings)
        texts.append([output.outputs[0].text for output in llm.generate(PROMPTS, params)])
        loads.append(llm.expert_loads())
        assert llm.stats().num_expert_tokens == sum(map(sum, loads[-1].values()))
    assert texts[0] == texts[1]
    assert loads[0] == loads[1]


def test_requests_to_triton_get_the_cpus_text(server: TritonServer, expected: dict[str, str]) -> None:
    server.write_model("device", {"model": MODEL, **ON_DEVICE})
    server.load("device")
    request = {"temperature": 0, "max_tokens": LENGTH, "ignore_eos": True, "exclude_input_in_output": True}

    def ask(prompt: str) -> str:
        return str(server.generate("device", text_input=prompt, **request)["text_output"])

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask, PROMPTS * 4))
    assert answers == list(expected.values()) * 4
    events = in_pieces(lambda: server.generate_stream("device", text_input=PROMPTS[0], **request))
    assert "".join(event["text_output"] for event in events) == expected[PROMPTS[0]]
    full = [line for line in server.metrics().splitlines() if 'mode="full"' in line]
    assert full and all(float(line.split()[-1]) > 0 for line in full)
    server.unload("device")
    server.load("device")  # its memory is free again
    assert ask(PROMPTS[2]) == expected[PROMPTS[2]]
    server.unload("device")


def test_a_budget_that_is_too_small_is_refused_by_name(server: TritonServer) -> None:
    server.write_model("small", {"model": MODEL, **ON_DEVICE, "gpu_memory_bytes": 1 << 20})
    answer = server.try_to_load("small")
    assert answer.status == 400
    assert "gpu_memory" in answer.body
