"""What requests without parameters are sampled with: a model's generation_config.json, as vLLM reads it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from quire import LLM, LLMEngine, SamplingParams


def model_with(demo_model: Path, directory: Path, **generation: Any) -> Path:
    """The demo model with another generation_config.json."""
    directory.mkdir(exist_ok=True)
    for file in demo_model.iterdir():
        if file.name != "generation_config.json":
            (directory / file.name).symlink_to(file)
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 0], **generation}))
    return directory


def test_calls_without_parameters_take_the_models(demo_model: Path, tmp_path: Path) -> None:
    model = model_with(
        demo_model, tmp_path / "m", temperature=0.0, max_new_tokens=5, top_k=50, do_sample=True
    )
    expected = SamplingParams(temperature=0, max_tokens=5, top_k=50)
    llm = LLM(model, max_model_len=128)
    assert llm.get_default_sampling_params() == expected
    changed = llm.get_default_sampling_params()
    changed.max_tokens = 1
    assert llm.get_default_sampling_params() == expected  # each call gives a copy
    [wanted] = llm.generate(["Once"], expected, use_tqdm=False)
    assert len(wanted.outputs[0].token_ids) == 5
    [output] = llm.generate(["Once"], use_tqdm=False)
    assert output.outputs[0].token_ids == wanted.outputs[0].token_ids
    streamed = [token for part in llm.stream("Once") for token in part.outputs[0].token_ids]
    assert streamed == wanted.outputs[0].token_ids
    message = [{"role": "user", "content": "Hi"}]
    [answer] = llm.chat(message, use_tqdm=False)
    [same] = llm.chat(message, expected, use_tqdm=False)
    assert answer.outputs[0].token_ids == same.outputs[0].token_ids
    engine = LLMEngine(model, max_model_len=128)
    engine.add_request("0", "Once")
    outputs = []
    while engine.has_unfinished_requests():
        outputs += engine.step()
    assert outputs[-1].outputs[0].token_ids == wanted.outputs[0].token_ids
    assert LLM(model, generation_config="vllm").get_default_sampling_params() == SamplingParams()


def test_another_file_and_single_keys_come_before_the_models(demo_model: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "generation_config.json").write_text('{"top_p": 0.25}')
    llm = LLM(demo_model, generation_config=str(other), override_generation_config={"min_p": 0.5})
    assert llm.get_default_sampling_params() == SamplingParams(top_p=0.25, min_p=0.5)
    assert llm.model.eos_token_ids == LLM(demo_model).model.eos_token_ids
    assert LLM(demo_model).get_default_sampling_params() == SamplingParams()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"generation_config": "nowhere"}, "generation_config: no file 'nowhere'"),
        ({"override_generation_config": {"top_q": 1}}, "override_generation_config: 'top_q' is not read"),
        (
            {"override_generation_config": {"top_k": "x"}},
            "override_generation_config: top_k must be an integer",
        ),
        (
            {"override_generation_config": {"temperature": -1}},
            "override_generation_config.temperature must be at least 0 and finite, got -1",
        ),
        (
            {"override_generation_config": {"top_p": 0.5, "max_new_tokens": 0}},
            "override_generation_config.max_new_tokens must be at least 1, got 0",
        ),
    ],
)
def test_what_is_wrong_is_said_when_the_engine_starts(
    demo_model: Path, arguments: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        LLM(demo_model, **arguments)
