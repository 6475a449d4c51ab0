"""``quire plan``: what engines then take, within 1 %, and what to change where a model does not fit."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import quire
from model_cases import CASES
from quantized_models import quantize
from quire import _core
from quire.cli import main
from quire.memory_plan import read_bytes, with_bars

SMALL: dict[str, Any] = {"device": "cpu", "kv_cache_memory_bytes": 32 << 20, "max_num_seqs": 8}
LLAMA_70B = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 128256,
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}


def taken(model: Path, **engine_args: Any) -> dict[str, int]:
    llm = quire.LLM(model, skip_tokenizer_init=True, **engine_args)
    return llm.model.memory


@pytest.mark.parametrize(
    "engine_args",
    [
        {},
        {"dtype": "float32", "max_num_batched_tokens": 4096},
        {"tensor_parallel_size": 2},
        {"max_model_len": 300, "num_gpu_blocks_override": 100},
    ],
)
def test_engines_take_what_was_planned(demo_model: Path, engine_args: dict[str, Any]) -> None:
    engine_args = {**SMALL, **engine_args}
    plan = quire.plan(demo_model, **engine_args)
    assert plan["fits"]
    assert plan["memory"] == pytest.approx(taken(demo_model, **engine_args), rel=0.01)
    assert plan["total_bytes"] == sum(plan["memory"].values())
    assert plan["peak_bytes"] == plan["total_bytes"] * plan["tensor_parallel_size"]


@pytest.mark.parametrize(
    "name", ["gpt-oss-gqa-64", "qwen2-moe-mha-dense-layers", "gemma3-gqa-64", "bloom-mha-64"]
)
def test_mixtures_and_windows(name: str, make_model: Callable[..., Path]) -> None:
    model = make_model(CASES[name])
    for more in ({}, {"tensor_parallel_size": 2}, {"load_format": "dummy", "dtype": "float32"}):
        engine_args = {**SMALL, "max_model_len": 300, **more}
        assert quire.plan(model, **engine_args)["memory"] == taken(model, **engine_args)


@pytest.mark.parametrize("name", ["bloom-mha-64", "gpt-neox-mha-64"])
def test_heads_that_the_architecture_does_not_share(
    name: str, make_model: Callable[..., Path], tmp_path: Path
) -> None:
    config = json.loads((make_model(CASES[name]) / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_key_value_heads": 2}))
    with pytest.raises(ValueError, match=r"config\.json: 'num_key_value_heads' must be .*, 4, .* got 2"):
        quire.plan(tmp_path, load_format="dummy", **SMALL)


@pytest.mark.parametrize("layout", ["pack-quantized", "int-quantized"])
def test_quantized_and_packed_weights(tmp_path: Path, make_model: Callable[..., Path], layout: str) -> None:
    model = tmp_path / "model"
    quantize(make_model(CASES["qwen2-gqa-80"]), model, layout)
    engine_args = {**SMALL, "max_model_len": 128}
    plan = quire.plan(model, **engine_args)
    assert plan["memory"] == taken(model, **engine_args)
    quire.pack_weights(model, tmp_path / "packed", device="cpu")
    assert quire.plan(tmp_path / "packed", **engine_args)["memory"] == plan["memory"]


def test_the_process_grows_by_what_is_planned(tmp_path: Path) -> None:
    """A model that is large beside a Python process, all of whose KV cache is used."""
    shape = LLAMA_70B | {
        "vocab_size": 32000,
        "hidden_size": 1024,
        "intermediate_size": 2816,
        "num_hidden_layers": 4,
        "num_attention_heads": 16,
        "max_position_embeddings": 2048,
    }
    (tmp_path / "config.json").write_text(json.dumps(shape))
    engine_args = {**SMALL, "load_format": "dummy", "kv_cache_memory_bytes": 16 << 20, "max_model_len": 1000}
    plan = quire.plan(tmp_path, **engine_args)
    code = f"""
import quire
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
before = resident()
llm = quire.LLM({str(tmp_path)!r}, skip_tokenizer_init=True, **{engine_args!r})
prompts = [{{"prompt_token_ids": [i] * 950}} for i in range(2)]
llm.generate(prompts, quire.SamplingParams(max_tokens=1), use_tqdm=False)
print(resident() - before)
"""
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert int(run.stdout) == pytest.approx(plan["peak_bytes"], rel=0.1)


def test_a_large_model_on_devices_that_are_not_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if not _core.build_info()["has_cuda"]:
        pytest.skip("this build has no CUDA code")
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_70B))
    flags = ["--load-format", "dummy", "--device", "cuda", "--max-model-len", "8192"]
    assert main(["plan", str(tmp_path), *flags, "--device-name", "h200", "--json"]) == 1
    plan = json.loads(capsys.readouterr().out)
    assert plan["memory"]["weights"] == pytest.approx(2 * 70.55e9, rel=0.001)
    assert plan["kv_bytes_per_token"] == 2 * 80 * 8 * 128 * 2
    fields = {one["field"]: one["value"] for one in plan["suggestions"]}
    assert fields["tensor_parallel_size"] == 2
    two = [*flags, "--device-name", "H200", "--tensor-parallel-size", "2"]
    assert main(["plan", "--model", str(tmp_path), *two]) == 0
    text = capsys.readouterr().out
    assert "peak" in text and ": fits" in text
    needed = str(fields["device_memory"])
    assert main(["plan", str(tmp_path), *flags, "--device-memory", needed]) == 0
    assert main(["plan", str(tmp_path), *flags, "--device-memory", str(int(needed) - (1 << 30))]) == 1
    assert "would fit with one of: max_model_len" in capsys.readouterr().out


def test_slots_of_adapters_are_planned(demo_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each has room for the largest adapter: of every linear, both matrices at the highest rank."""
    if not _core.build_info()["has_cuda"]:
        pytest.skip("this build has no CUDA code")

    def adapters(*flags: str) -> int:
        assert main(["plan", "--device-name", "H100", "--dtype", "bfloat16", "--json", *flags]) == 0
        taken: int = json.loads(capsys.readouterr().out)["memory"]["adapters"]
        return taken

    config = json.loads((demo_model / "config.json").read_text())
    hidden, intermediate = config["hidden_size"], config["intermediate_size"]
    head = config.get("head_dim") or hidden // config["num_attention_heads"]
    queries, keys = (head * config[name] for name in ("num_attention_heads", "num_key_value_heads"))
    linears = [
        (hidden, queries),
        (hidden, keys),
        (hidden, keys),
        (queries, hidden),
        (hidden, intermediate),
        (hidden, intermediate),
        (intermediate, hidden),
    ]
    of_one = 2 * config["num_hidden_layers"] * 32 * sum(n + k for n, k in linears)
    assert adapters() == 0
    for count in (1, 6):
        taken = adapters("--enable-lora", "--max-lora-rank", "32", "--max-loras", str(count))
        assert count * of_one <= taken < 1.05 * count * of_one


def test_slots_have_room_for_experts_where_adapters_may_change_them(
    make_model: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    if not _core.build_info()["has_cuda"]:
        pytest.skip("this build has no CUDA code")
    config = CASES["qwen3-moe-gqa-64"]
    model = make_model(config)

    def planned(*flags: str) -> dict[str, int]:
        flags = ("--enable-lora", "--max-lora-rank", "32", "--max-loras", "3", *flags)
        assert main(["plan", str(model), "--device-name", "H100", "--json", *flags]) == 0
        memory: dict[str, int] = json.loads(capsys.readouterr().out)["memory"]
        return memory

    experts = config.num_hidden_layers * config.num_experts
    widths = config.hidden_size + config.moe_intermediate_size
    of_three = 3 * 2 * experts * 3 * 32 * widths
    with_experts, without = planned(), planned("--no-enable-lora-experts")
    assert of_three <= with_experts["adapters"] - without["adapters"] < 1.01 * of_three
    assert 2 * with_experts["graphs"] == 3 * without["graphs"]


def test_what_a_host_cannot_hold_is_named(demo_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(demo_model), "--device", "cpu", "--device-memory", "1KiB"]) == 1
    text = capsys.readouterr().out
    assert "does not fit: the model does not fit: weights 0.01" in text
    assert "would fit with" in text and "device_memory" in text
    assert main(["plan", str(demo_model), "--device", "cpu", "--device-memory", "1GiB"]) == 0


def test_bad_input_is_named(demo_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for flags, message in [
        (["--device", "cpu", "--device-memory", "lots"], "--device-memory 'lots' is no size"),
        (["--device-memory", ""], "--device-memory '' is no size"),
        (["--device-name", ""], "--device-name '' is no device; give A100"),
        (["--device", "cpu", "--device-name", "H100"], "device_name 'H100' is a CUDA device's"),
        (["/none/there"], "no directory '/none/there'"),
        (["a", "--model", "b"], "give one of them"),
    ]:
        assert main(["plan", *flags]) == 1
        assert message in capsys.readouterr().err
    with pytest.raises(ValueError, match="device_name '' is no device"):
        quire.plan(demo_model, device_name="")


@pytest.mark.parametrize(
    ("text", "size"),
    [("80GiB", 80 << 30), ("80G", 80 * 10**9), ("1.5 KiB", 1536), ("123", 123), ("5b", 5), ("2tib", 2 << 40)],
)
def test_sizes(text: str, size: int) -> None:
    assert read_bytes("x", text) == size


@pytest.mark.parametrize("text", ["", "-1", "0", "GiB", "5iB", "1e9", "9" * 40, "\uff18\uff10GiB", "8\u212a"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="give one like 80GiB"):
        read_bytes("x", text)


def test_bars_are_as_long_as_what_they_stand_for(demo_model: Path) -> None:
    plan = quire.plan(demo_model, **SMALL)
    bars = {
        line.split()[0]: line.count("\u2588") for line in with_bars(plan).splitlines() if "\u2588" in line
    }
    memory = plan["memory"]
    assert bars["KV"] == 32
    assert bars["weights"] == round(32 * memory["weights"] / memory["kv_cache"])
