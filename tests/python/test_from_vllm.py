"""Arguments as vLLM's users write them: taken, without effect, or refused with the reason."""

from __future__ import annotations

import dataclasses
import getpass
import inspect
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import quire
from paths import ROOT
from quire import LLM, AsyncEngineArgs, BeamSearchParams, EngineArgs, SamplingParams
from quire.config import FlexibleArgumentParser
from quire.config_fields import engine_config_fields
from quire.vllm_names import OWNERS, NoEffect, Refused, Renamed, find_name

NAMES = json.loads((ROOT / "tools" / "vllm_names.json").read_text())


@pytest.fixture(scope="module")
def llm(demo_model: Path) -> Iterator[LLM]:
    yield LLM(demo_model, max_model_len=64, max_num_seqs=4)


def test_the_page_is_what_the_tables_say() -> None:
    command = [sys.executable, str(ROOT / "tools" / "from_vllm.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


def test_every_argument_of_an_engine_may_be_none_or_ask_for_nothing(demo_model: Path) -> None:
    names = {*NAMES["LLM"], *NAMES["EngineArgs"], *NAMES["AsyncEngineArgs"]} - {"model"}
    arguments: dict[str, Any] = dict.fromkeys(names)
    assert EngineArgs(demo_model, **arguments) == EngineArgs(demo_model)
    for name in names - set(engine_config_fields()):
        made = OWNERS["EngineConfig"][name]
        arguments[name] = object() if isinstance(made, NoEffect) else made.neutral[0]  # type: ignore[union-attr]
    assert EngineArgs(demo_model, **arguments) == EngineArgs(demo_model)
    llm = LLM(demo_model, max_num_seqs=2, **{k: v for k, v in arguments.items() if k != "max_num_seqs"})
    assert llm.model.architecture


@pytest.mark.parametrize("owner", OWNERS)
def test_what_is_refused_is_named_with_its_reason(owner: str) -> None:
    for name, made in OWNERS[owner].items():
        if not isinstance(made, Refused):
            continue
        got = "" if made.is_secret else r", got 'wanted' \(str\)"
        with pytest.raises(ValueError, match=rf"^{name} is not supported{got}: ") as error:
            find_name(owner, name, "wanted")
        assert made.why in str(error.value)
        for value in (None, *made.neutral):
            assert find_name(owner, name, value) is None


def test_doors_refuse_what_they_cannot_do(llm: LLM, demo_model: Path) -> None:
    for call in (LLM, EngineArgs, AsyncEngineArgs):
        with pytest.raises(ValueError, match="quantization is not supported, got 'awq'"):
            call(demo_model, quantization="awq")
    with pytest.raises(TypeError, match="EngineArgs has no argument 'max_num_seq'; did you mean"):
        EngineArgs(max_num_seq=1)
    with pytest.raises(ValueError, match="mm_processor_kwargs is not supported"):
        llm.generate("Once", mm_processor_kwargs=object())  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="repetition_detection is not supported"):
        SamplingParams(repetition_detection=object())  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="whitespace_pattern is not supported"):
        SamplingParams(structured_outputs={"regex": "a", "whitespace_pattern": "x"})
    with pytest.raises(ValueError, match="structured_outputs cannot be set with a beam_width above 1"):
        BeamSearchParams(2, 4, structured_outputs=quire.StructuredOutputsParams(regex="a"))


def test_reasons_are_true_of_the_engine(demo_model: Path) -> None:
    llm = LLM(demo_model, max_model_len=64, enable_sleep_mode=True)
    llm.sleep()
    assert llm.is_sleeping()
    llm.wake_up()
    with pytest.raises(
        ValueError, match=r"weight_transfer_config is not supported, got .*: update_weights\(\)"
    ):
        LLM(demo_model, weight_transfer_config={"backend": "nccl"})
    with pytest.raises(ValueError, match=r"enable_return_routed_experts .*: .*; expert_loads\(\) counts"):
        LLM(demo_model, enable_return_routed_experts=True)
    llm.update_weights(demo_model)
    assert llm.expert_loads() == {}  # the demo model is none
    made = [one for owner in OWNERS.values() for one in owner.values()]
    assert not [one.why for one in made if not isinstance(one, Renamed) and "has experts" in one.why]


def test_calls_take_vllms_arguments(llm: LLM) -> None:
    options: dict[str, Any] = {"skip_clone": True, "thinking_token_budget": None, "flat_logprobs": False}
    params = SamplingParams(temperature=0, max_tokens=4, **options)
    assert params == SamplingParams(temperature=0, max_tokens=4)
    budget: dict[str, Any] = {"thinking_token_budget": 7}
    assert SamplingParams(**budget).max_thinking_tokens == 7
    shown: list[int] = []

    class Bar:
        def __init__(self, total: int, desc: str) -> None:
            assert total == 1 and desc

        def update(self, count: int) -> None:
            shown.append(count)

        def close(self) -> None:
            shown.append(-1)

    ignored: dict[str, Any] = {"lora_request": None, "tokenization_kwargs": {}, "mm_processor_kwargs": None}
    [output] = llm.generate("Once", params, use_tqdm=Bar, **ignored)
    assert len(output.outputs[0].token_ids) == 4
    assert shown == [1, -1]
    message = [{"role": "user", "content": "Hi"}]
    assert llm.chat(message, params, False, **ignored)[0].outputs[0].token_ids
    search: dict[str, Any] = {"lora_request": None, "concurrency_limit": 2}
    assert llm.beam_search(["Once"], BeamSearchParams(2, 4), **search)[0].sequences


def test_engine_args_are_a_dataclass_of_the_fields(demo_model: Path) -> None:
    args = EngineArgs(str(demo_model), max_num_seqs=3, dtype="half", prefix_caching_hash_seed="secret")
    assert {f.name for f in dataclasses.fields(args)} == {*engine_config_fields(), "kv_arena"}  # type: ignore[arg-type]
    assert (args.max_num_seqs, args.block_size, args.think_end_token_ids) == (3, 16, [])
    assert "max_num_seqs=3" in repr(args) and "secret" not in repr(args)
    args.max_model_len = 32
    config = args.create_engine_config()
    assert (config.max_num_seqs, config.max_model_len, config.dtype) == (3, 32, "float16")
    assert EngineArgs(**dataclasses.asdict(args)) == args  # type: ignore[call-overload]
    assert EngineArgs().think_end_token_ids is not EngineArgs().think_end_token_ids
    with pytest.raises(AttributeError, match="did you mean 'max_model_len'"):
        args.max_model_lne = 1
    assert inspect.signature(EngineArgs).parameters["block_size"].default == 16
    assert inspect.signature(EngineArgs).parameters["max_num_seqs"].default is None
    args.max_num_seqs = 0
    with pytest.raises(ValueError, match="max_num_seqs must be between 1 and 4096, got 0"):
        args.create_engine_config()


def test_engine_args_come_from_a_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIRE_BLOCK_SIZE", "32")
    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    given = parser.parse_args(["--max_num_seqs", "3", "--no-enable-prefix-caching"])
    for kind in (EngineArgs, AsyncEngineArgs):
        args = kind.from_cli_args(given)
        assert type(args) is kind
        assert args == kind(max_num_seqs=3, enable_prefix_caching=False, block_size=32)


def test_a_report_of_the_environment_names_nobody(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "quire", "collect-env"]
    text = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    in_json = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True, timeout=60)
    env = quire.collect_env()
    assert json.loads(in_json.stdout).keys() == env.keys()
    assert env["quire"]["instruction_set"] in env["quire"]["instruction_sets_available"]
    assert f"version: {quire.__version__}\n" in text
    host = Path("/proc/sys/kernel/hostname").read_text().strip()
    for private in (
        host,
        str(Path.home()),
        str(ROOT),
        *([] if getpass.getuser() == "root" else [getpass.getuser()]),
    ):
        assert len(private) < 3 or private not in text
