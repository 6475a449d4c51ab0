"""Engines that sleep, take new weights and tell whether they are well, from Python."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from model_cases import CASES, gemma2, llama, qwen2
from quire import LLM, LLMEngine, SamplingParams
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
PROMPT = [3 + i * 11 % 500 for i in range(40)]
MakeModel = Callable[..., Path]


def answer(llm: LLM) -> list[int]:
    return list(llm.generate([PROMPT], GREEDY, use_tqdm=False)[0].outputs[0].token_ids)


def logprobs(llm: LLM) -> np.ndarray[Any, Any]:
    """Of every token after the prompt."""
    params = SamplingParams(temperature=0, max_tokens=1, logprobs=-1)
    position = llm.generate([PROMPT], params, use_tqdm=False)[0].outputs[0].logprobs
    assert position is not None
    return np.array([position[0][i].logprob for i in range(llm.model.vocab_size)], dtype=np.float32)


def start(directory: Path, **engine_args: Any) -> LLM:
    return LLM(directory, skip_tokenizer_init=True, device="cpu", max_logprobs=-1, **engine_args)


def test_a_sleeping_engine_refuses_requests_and_wakes_up_as_it_was(demo_model: Path) -> None:
    llm = LLM(demo_model)
    before = answer(llm)
    for level in (1, 2):
        llm.sleep(level)
        assert llm.is_sleeping()
        with pytest.raises(MemoryError, match=r"asleep: wake_up\(\) accepts requests again"):
            answer(llm)
        llm.wake_up(tags=["weights"])
        assert llm.is_sleeping()
        llm.wake_up()
        assert not llm.is_sleeping()
        assert answer(llm) == before
    with pytest.raises(ValueError, match=r"level must be 1 .* got 3"):
        llm.sleep(3)
    with pytest.raises(ValueError, match="mode must be one of refuse, wait, abort, got 'keep'"):
        llm.sleep(mode="keep")
    with pytest.raises(ValueError, match='got "graphs"'):
        llm.wake_up(["graphs"])
    with pytest.raises(TypeError, match="tags must be a list"):
        llm.wake_up("weights")


def test_unfinished_requests_are_refused_unless_they_may_be_aborted(demo_model: Path) -> None:
    engine = LLMEngine(demo_model)
    engine.add_request("a", "Once", GREEDY)
    engine.step()
    with pytest.raises(ValueError, match="1 requests are unfinished"):
        engine.sleep()
    engine.sleep(mode="abort")
    assert [o.outputs[0].finish_reason for o in engine.step()] == ["abort"]


def test_health_is_asked_without_waiting(demo_model: Path) -> None:
    llm = LLM(demo_model)
    assert llm.seconds_since_progress == 0
    llm.check_health()
    llm.check_health(timeout=0)


# Architectures whose parts have other names in memory than in a checkpoint.
IN_MEMORY = ["mixtral-gqa-64", "qwen3-moe-gqa-64", "glm4-moe-gqa-64", "granite-moe-gqa-64", "gpt-neox-mha-64"]


@pytest.mark.parametrize(
    "config",
    [llama(), qwen2(), gemma2(), *(CASES[name] for name in IN_MEMORY)],
    ids=["llama", "qwen2", "gemma2", *IN_MEMORY],
)
def test_logits_after_an_update_are_transformers(make_model: MakeModel, config: Any) -> None:
    directory = make_model(config)
    llm = start(directory, dtype="float32")
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    for step in range(2):  # as a training loop would
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(0.9 + 0.3 * step)
            expected = torch.log_softmax(model(torch.tensor([PROMPT])).logits[0, -1], dim=-1).numpy()
        llm.update_weights(model.state_dict())
        found = logprobs(llm)
        assert np.abs(found - expected).max() < 1e-4 * np.abs(expected).max()


@pytest.mark.parametrize("ranks", [1, 2])
def test_an_update_from_a_directory_is_an_engine_made_from_it(
    make_model: MakeModel, tmp_path: Path, ranks: int
) -> None:
    directory = make_model(qwen2(), "bfloat16")
    llm = start(directory, tensor_parallel_size=ranks)
    tensors = {name: tensor * 1.25 for name, tensor in load_file(directory / "model.safetensors").items()}
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((directory / "config.json").read_text())
    llm.update_weights(tmp_path)
    expected = start(tmp_path, tensor_parallel_size=ranks)
    assert np.array_equal(logprobs(llm), logprobs(expected))
    llm.sleep(2)
    llm.update_weights(iter(tensors.items()))
    llm.wake_up()
    assert np.array_equal(logprobs(llm), logprobs(expected))


def test_int8_weights_are_packed_anew(make_model: MakeModel, tmp_path: Path) -> None:
    quantized_models = pytest.importorskip("quantized_models")
    source = make_model(llama())
    quantized_models.quantize(source, tmp_path / "old")
    changed = tmp_path / "changed"
    changed.mkdir()
    (changed / "config.json").write_text((source / "config.json").read_text())
    tensors = {name: tensor * 1.25 for name, tensor in load_file(source / "model.safetensors").items()}
    save_file(tensors, changed / "model.safetensors")
    quantized_models.quantize(changed, tmp_path / "new")
    llm, expected = start(tmp_path / "old"), start(tmp_path / "new")
    assert not np.array_equal(logprobs(llm), logprobs(expected))
    llm.update_weights(load_file(tmp_path / "new" / "model.safetensors"))
    assert np.array_equal(logprobs(llm), logprobs(expected))
    llm.update_weights(tmp_path / "old")
    part = load_file(tmp_path / "new" / "model.safetensors")
    llm.update_weights({name: tensor for name, tensor in part.items() if "layers.0" in name}, partial=True)
    llm.update_weights(
        {name: tensor for name, tensor in part.items() if "layers.0" not in name}, partial=True
    )
    assert np.array_equal(logprobs(llm), logprobs(expected))


def test_arrays_of_any_kind_are_read_where_they_are(make_model: MakeModel) -> None:
    directory = make_model(llama())
    llm = start(directory, dtype="float32")
    name = "model.layers.0.mlp.down_proj.weight"
    weight = load_file(directory / "model.safetensors")[name]
    before = logprobs(llm)
    llm.update_weights({name: weight.numpy() * 2}, partial=True)
    doubled = logprobs(llm)
    assert not np.array_equal(doubled, before)
    llm.update_weights({name: weight}, partial=True)
    assert np.array_equal(logprobs(llm), before)
    llm.update_weights([(name, (weight * 2).half())], partial=True)
    half = logprobs(llm)
    llm.update_weights([(name, (weight * 2).half().float())], partial=True)
    assert np.array_equal(logprobs(llm), half)
    transposed = torch.empty(weight.shape[::-1]).t().copy_(weight)  # not dense
    llm.update_weights({name: transposed}, partial=True)
    assert np.array_equal(logprobs(llm), before)


def test_what_does_not_fit_is_refused_and_changes_nothing(make_model: MakeModel, tmp_path: Path) -> None:
    directory = make_model(llama())
    llm = start(directory, dtype="float32")
    before = logprobs(llm)
    name = "model.layers.0.mlp.down_proj.weight"
    weight = load_file(directory / "model.safetensors")[name]
    cases: list[tuple[Any, str]] = [
        ({name: weight[1:]}, rf"tensor '{name}' has shape \[255, 320\], the config asks for \[256, 320\]"),
        (
            {"layers.0.mlp.down_proj.weight": weight},
            f"no place for tensor .* the nearest that it has is '{name}'",
        ),
        ({name: weight.double()}, "has dtype 'torch.float64'"),
        ({name: weight * float("nan")}, "holds NaN"),
        ({name: weight.tolist()}, "must be an array in the CPU's memory .* got list"),
        ({name: weight.to("meta")}, "must be an array in the CPU's memory .* got Tensor"),
        ({}, "at least one"),
    ]
    for weights, message in cases:
        with pytest.raises(ValueError, match=message):
            llm.update_weights(weights, partial=True)
    with pytest.raises(ValueError, match="more are missing; give them, or say that the update is partial"):
        llm.update_weights({name: weight})
    with pytest.raises(TypeError, match="pairs of a name and a tensor"):
        llm.update_weights([name])  # type: ignore[list-item]
    config = json.loads((directory / "config.json").read_text()) | {"rms_norm_eps": 0.5}
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file(load_file(directory / "model.safetensors"), tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"'rms_norm_eps' is 0\.5, and 1e-06 in the engine's model"):
        llm.update_weights(tmp_path)
    assert np.array_equal(logprobs(llm), before)
