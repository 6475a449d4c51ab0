"""``quire export``: logits of what is written equal those of the module that it came from."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import quire
import torch
from logits_parity import Logits, assert_close, reference, run_quire_logits
from model_cases import CASES
from quire.cli import main
from transformers import AutoModelForCausalLM

ONE_OF_EACH = ["llama-gqa-64", "qwen2-gqa-80", "qwen3-gqa-128", "gemma2-mha-128-untied"]
SMALL = ONE_OF_EACH[0]
# Names that few have; in memory some are others than in a checkpoint.
OTHER_NAMES = [
    "gpt2-mha-64",
    "opt-mha-64",
    "bloom-mha-64",
    "gpt-neox-mha-64",
    "phi3-mha-64",
    "mixtral-gqa-64",
    "qwen3-moe-gqa-64",
    "granite-moe-mha-tied",
    "gpt-oss-gqa-64",
]


@pytest.fixture
def logits_of(build_dir: Path, tmp_path: Path) -> Callable[..., Logits]:
    def logits(directory: Path, name: str = SMALL) -> Logits:
        return run_quire_logits(build_dir, tmp_path / "out", directory, CASES[name])

    return logits


def module_of(directory: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(directory, dtype="auto").eval()


@pytest.mark.parametrize("name", ONE_OF_EACH + OTHER_NAMES)
def test_a_live_module(
    name: str, make_model: Callable[..., Path], logits_of: Callable[..., Logits], tmp_path: Path
) -> None:
    model = make_model(CASES[name])
    written = quire.export(module_of(model), tmp_path / "exported")
    assert_close(run(logits_of, written, name), reference(model, CASES[name]))


@pytest.mark.parametrize("name", ["mixtral-gqa-64", "granite-moe-mha-tied", "gpt-neox-mha-64"])
def test_a_state_dict_with_names_of_memory(
    name: str, make_model: Callable[..., Path], logits_of: Callable[..., Logits], tmp_path: Path
) -> None:
    model = make_model(CASES[name])
    source = save(tmp_path / "source", model, ("pytorch_model.bin", state_of(model)))
    written = quire.export(source, tmp_path / "exported")
    assert_close(run(logits_of, written, name), reference(model, CASES[name]))


def run(logits_of: Callable[..., Logits], directory: Path, name: str = SMALL) -> Logits:
    return logits_of(directory, name)


def state_of(model: Path) -> dict[str, torch.Tensor]:
    return dict(module_of(model).state_dict())


def save(directory: Path, source: Path, *parts: tuple[str, Any]) -> Path:
    directory.mkdir()
    shutil.copy(source / "config.json", directory)
    for name, content in parts:
        torch.save(content, directory / name)
    return directory


class Wrapped(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.model = inner


@pytest.mark.parametrize(
    "form", ["bin", "sharded", "checkpoint", "legacy", "prefixed", "base", "wrapped", "compiled", "pt"]
)
def test_state_dicts(
    form: str, make_model: Callable[..., Path], logits_of: Callable[..., Logits], tmp_path: Path
) -> None:
    model = make_model(CASES[SMALL])
    state = state_of(model)
    source: Any = tmp_path / "source"
    if form == "bin":
        save(source, model, ("pytorch_model.bin", state))
    elif form == "sharded":
        names = sorted(state)
        parts = {"a.bin": names[::2], "b.bin": names[1::2]}
        save(source, model, *((part, {n: state[n] for n in chosen}) for part, chosen in parts.items()))
        weight_map = {name: part for part, chosen in parts.items() for name in chosen}
        (source / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}))
    elif form == "checkpoint":
        content = {"epoch": 3, "model": {f"module.{name}": value for name, value in state.items()}}
        source = save(source, model, ("last.pt", content)) / "last.pt"
    elif form == "legacy":
        save(source, model)
        torch.save(state, source / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    elif form == "prefixed":
        save(
            source, model, ("pytorch_model.bin", {f"_orig_mod.model.{name}": v for name, v in state.items()})
        )
    elif form == "base":  # without the head, which is tied
        base = {name.removeprefix("model."): v for name, v in state.items() if not name.startswith("lm_head")}
        save(source, model, ("pytorch_model.bin", base))
    elif form == "wrapped":
        source = Wrapped(module_of(model))
    elif form == "compiled":
        source = torch.compile(module_of(model))
    else:
        source = save(source, model, ("weights.pt", state)) / "weights.pt"
    tied = json.loads((model / "config.json").read_text()).get("tie_word_embeddings", True)
    if form == "base" and not tied:
        with pytest.raises(ValueError, match=r"tensor 'lm_head.weight' is missing"):
            quire.export(source, tmp_path / "exported")
        return
    written = quire.export(source, tmp_path / "exported", config=model)
    assert_close(run(logits_of, written), reference(model, CASES[SMALL]))


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("rows", ["whole", "split"])
def test_metas_own_form(
    ranks: int, rows: str, make_model: Callable[..., Path], logits_of: Callable[..., Logits], tmp_path: Path
) -> None:
    model = make_model(CASES[SMALL])
    config = json.loads((model / "config.json").read_text())
    source = tmp_path / "llama"
    source.mkdir()
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    params = {
        "dim": config["hidden_size"],
        "n_layers": config["num_hidden_layers"],
        "n_heads": heads,
        "n_kv_heads": kv_heads,
        "norm_eps": config["rms_norm_eps"],
        "rope_theta": (config.get("rope_parameters") or config)["rope_theta"],
        "max_seq_len": config["max_position_embeddings"],
    }
    (source / "params.json").write_text(json.dumps(params))
    for rank in range(ranks):
        part: dict[str, torch.Tensor] = {"rope.freqs": torch.zeros(4)}
        for name, value in state_of(model).items():
            theirs, dimension = metas_name(name)
            if "wq" in theirs or "wk" in theirs:
                count = heads if "wq" in theirs else kv_heads
                halves = value.view(count, 2, value.shape[0] // count // 2, value.shape[1])
                value = halves.transpose(1, 2).reshape(value.shape)
            if theirs.startswith("tok_embeddings"):
                dimension = 0 if rows == "split" else 1
            part[theirs] = value if dimension is None else value.chunk(ranks, dim=dimension)[rank].clone()
        torch.save(part, source / f"consolidated.{rank:02}.pth")
    written = quire.export(source, tmp_path / "exported")
    assert_close(run(logits_of, written), reference(model, CASES[SMALL]))


def metas_name(name: str) -> tuple[str, int | None]:
    """And the dimension that ranks divide."""
    for ours, theirs, dimension in [
        ("self_attn.q_proj", "attention.wq", 0),
        ("self_attn.k_proj", "attention.wk", 0),
        ("self_attn.v_proj", "attention.wv", 0),
        ("self_attn.o_proj", "attention.wo", 1),
        ("mlp.gate_proj", "feed_forward.w1", 0),
        ("mlp.down_proj", "feed_forward.w2", 1),
        ("mlp.up_proj", "feed_forward.w3", 0),
        ("input_layernorm", "attention_norm", None),
        ("post_attention_layernorm", "ffn_norm", None),
        ("model.embed_tokens", "tok_embeddings", 1),
        ("model.norm", "norm", None),
        ("lm_head", "output", 0),
    ]:
        if ours in name:
            return name.replace(ours, theirs).removeprefix("model."), dimension
    raise AssertionError(name)


def test_dtypes_shards_and_transforms(make_model: Callable[..., Path], tmp_path: Path) -> None:
    model = make_model(CASES[SMALL])
    written = quire.export(model, tmp_path / "small", dtype="bfloat16", max_shard_size=20_000)
    shards = sorted(path.name for path in written.glob("*.safetensors"))
    assert len(shards) > 2 and shards[0] == f"model-00001-of-{len(shards):05}.safetensors"
    assert json.loads((written / "config.json").read_text())["dtype"] == "bfloat16"
    expected = module_of(model).to(torch.bfloat16).state_dict()
    for name, value in module_of(written).state_dict().items():
        assert torch.equal(value, expected[name]), name

    seen = []

    def transform(name: str, tensor: torch.Tensor) -> Any:
        seen.append(name)
        return tensor * 2 if name == "model.norm.weight" else tensor

    twice = module_of(quire.export(model, tmp_path / "twice", transform=transform)).state_dict()
    assert torch.equal(twice["model.norm.weight"], state_of(model)["model.norm.weight"] * 2)
    assert "model.embed_tokens.weight" in seen


def test_a_transform_may_quantize(
    make_model: Callable[..., Path], logits_of: Callable[..., Logits], tmp_path: Path
) -> None:
    """Into the form of compressed-tensors, int8 with a scale for each output."""
    model = make_model(CASES[SMALL])
    config = json.loads((model / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"},
            }
        },
    }
    meant = {}

    def quantize(name: str, weight: torch.Tensor) -> Any:
        if not name.endswith("_proj.weight"):
            return weight
        scale = weight.abs().amax(dim=1, keepdim=True) / 127
        quantized = (weight / scale).round().to(torch.int8)
        meant[name] = quantized * scale
        return {name: quantized, f"{name}_scale": scale}

    written = quire.export(model, tmp_path / "int8", config=config, transform=quantize)
    quire.export(model, tmp_path / "meant", transform=lambda name, weight: meant.get(name, weight))
    assert_close(run(logits_of, written), reference(tmp_path / "meant", CASES[SMALL]))


def test_the_demo_model_writes_the_same_tokens(demo_model: Path, tmp_path: Path) -> None:
    torch.save(state_of(demo_model), tmp_path / "pytorch_model.bin")
    for name in ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(demo_model / name, tmp_path)
    assert main(["export", str(tmp_path), str(tmp_path.parent / "out")]) == 0
    greedy = quire.SamplingParams(temperature=0, max_tokens=40)

    def text(model: Path) -> str:
        llm = quire.LLM(model, device="cpu", max_model_len=128, kv_cache_memory_bytes=16 << 20)
        return llm.generate("Once upon a time", greedy, use_tqdm=False)[0].outputs[0].text

    assert text(tmp_path.parent / "out") == text(demo_model)


class Evil:
    def __reduce__(self) -> Any:
        return (open, ("evil-was-here", "w"))


def test_code_in_a_pickle_is_refused_and_not_run(
    make_model: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = make_model(CASES[SMALL])
    for i, new in enumerate((True, False)):
        source = save(tmp_path / f"evil{i}", model)
        torch.save({"a": Evil()}, source / "pytorch_model.bin", _use_new_zipfile_serialization=new)
        with pytest.raises(ValueError, match=r"pytorch_model\.bin: refused, .* pickle names io\.open"):
            quire.export(source, tmp_path / "out")
    assert not (tmp_path / "evil-was-here").exists()
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.pop("model.norm.weight"), "tensor 'model.norm.weight' is missing"),
        (lambda state: state.update(extra=torch.zeros(2)), "the model has no place for tensor 'extra'"),
        (
            lambda state: state.update({"model.norm.weight": torch.zeros(3)}),
            "has shape [3], the config asks for",
        ),
        (lambda state: state.update(lr=0.1), "'lr' is float, and no tensor"),
        (
            lambda state: state.update({"model.norm.weight": torch.zeros(64).to_sparse()}),
            "only dense real tensors",
        ),
        (lambda state: state.update({3: torch.zeros(2)}), "names a tensor 3; names must be strings"),
    ],
)
def test_what_does_not_fit_is_named(
    change: Callable[[dict[Any, Any]], Any], message: str, make_model: Callable[..., Path], tmp_path: Path
) -> None:
    state: dict[Any, Any] = state_of(make_model(CASES[SMALL]))
    change(state)
    source = save(tmp_path / "source", make_model(CASES[SMALL]), ("pytorch_model.bin", state))
    with pytest.raises(ValueError) as error:
        quire.export(source, tmp_path / "out")
    assert message in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_float16_that_would_be_infinite_is_refused(make_model: Callable[..., Path], tmp_path: Path) -> None:
    module = module_of(make_model(CASES[SMALL]))
    with torch.no_grad():
        module.model.norm.weight[0] = 1e6
    with pytest.raises(ValueError, match=r"tensor 'model.norm.weight' holds 1e\+06, which is beyond float16"):
        quire.export(module, tmp_path / "out", dtype="float16")


@pytest.mark.parametrize(
    "case", ["exists", "inside", "itself", "meta", "nothing", "gguf", "dtype", "shards", "index"]
)
def test_bad_arguments(case: str, make_model: Callable[..., Path], tmp_path: Path) -> None:
    model = shutil.copytree(make_model(CASES[SMALL]), tmp_path / "model")
    arguments: dict[str, Any] = {}
    source: Any = model
    target = tmp_path / "out"
    if case == "exists":
        target.mkdir()
        message = "is there already; overwrite replaces a directory"
    elif case == "inside":
        target = model / "out"
        message = "are in each other"
    elif case == "itself":
        target = model
        message = "are in each other"
    elif case == "meta":
        source = module_of(model).to("meta")
        message = "is on the meta device"
    elif case == "nothing":
        source = tmp_path / "none"
        message = "give a file of torch.save"
    elif case == "gguf":
        source = tmp_path / "x.gguf"
        source.write_bytes(b"GGUF")
        message = "needs no export"
    elif case == "dtype":
        arguments["dtype"] = "int3"
        message = "dtype 'int3' must be one of"
    elif case == "shards":
        arguments["max_shard_size"] = 0
        message = "max_shard_size 0 must be"
    else:
        (model / "model.safetensors").unlink()
        (model / "pytorch_model.bin.index.json").write_text('{"weight_map": {"a": "../b.bin"}}')
        message = "weight_map of 'a' must be a file name, got '../b.bin'"
    with pytest.raises(ValueError) as error:
        quire.export(source, target, **arguments)
    assert message in str(error.value)


def test_overwriting_and_a_dry_run(
    make_model: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = make_model(CASES[SMALL])
    target = tmp_path / "out"
    assert main(["export", str(model), str(target), "--dry-run"]) == 0
    assert "model.norm.weight float32 [" in capsys.readouterr().out
    assert not target.exists()
    target.mkdir()
    (target / "old").write_text("")
    assert main(["export", str(model), str(target), "--overwrite"]) == 1
    assert "is no model's directory (it has no config.json): remove it" in capsys.readouterr().err
    (target / "config.json").write_text("{}")
    assert main(["export", str(model), str(target), "--overwrite"]) == 0
    assert not (target / "old").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert main(["export", str(model), str(tmp_path / "x"), "--device", "cpu"]) == 1
    assert "add --packed" in capsys.readouterr().err


def test_packed_by_the_command(make_model: Callable[..., Path], tmp_path: Path) -> None:
    model = make_model(CASES[SMALL])
    flags = ["--packed", "--device", "cpu", "--tensor-parallel-size", "2"]
    assert main(["export", str(model), str(tmp_path / "packed"), *flags]) == 0
    assert len(list((tmp_path / "packed").glob("*.quire"))) == 2


@pytest.mark.parametrize("how", ["full", "killed"])
def test_what_is_cut_short_leaves_nothing_that_loads(
    how: str, make_model: Callable[..., Path], tmp_path: Path
) -> None:
    model = make_model(CASES[SMALL])
    body = "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))" if how == "full" else ""
    code = f"""
import os, resource, signal, quire
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
{body}
def transform(name, tensor):
    if {how == "killed"} and name.endswith("norm.weight"):
        os.kill(os.getpid(), signal.SIGKILL)
    return tensor
try:
    quire.export({str(model)!r}, {str(tmp_path / "out")!r}, transform=transform)
except OSError as error:
    print("refused:", error)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert not (tmp_path / "out").exists()
    left = list(tmp_path.iterdir())
    if how == "full":
        assert "refused:" in run.stdout, run.stderr
        assert left == []
    else:
        assert run.returncode == -9
        assert all(path.name.startswith(".out.") and not (path / "config.json").exists() for path in left)


def test_torch_is_imported_by_exports_alone() -> None:
    code = "import quire, quire.cli, sys; assert quire.export and 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_logits_differ_between_models(make_model: Callable[..., Path]) -> None:
    """Or the tests above would say nothing."""
    one = reference(make_model(CASES[SMALL]), CASES[SMALL])
    assert np.abs(one).max() > 0.01
