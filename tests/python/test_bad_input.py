"""Bad input gets one line that names the field or file, the value and what would do; nothing else suffers."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Iterator
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest
from quire import LLM, LLMEngine, SamplingParams
from quire.prompts import Prompt


@pytest.fixture(scope="module")
def llm(demo_model: Path) -> Iterator[LLM]:
    yield LLM(demo_model, max_model_len=64)


def edit(path: Path, **changes: Any) -> None:
    config = json.loads(path.read_text())
    for key, value in changes.items():
        if value is None:
            config.pop(key, None)
        else:
            config[key] = value
    path.write_text(json.dumps(config))


def refused(model: Path, pattern: str, **engine_args: Any) -> None:
    with pytest.raises(ValueError, match=pattern) as error:
        LLM(model, **engine_args)
    assert "\n" not in str(error.value)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1000])


def rewrite_header(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + size :])


NORM = "model.norm.weight"


def rename(header: dict[str, Any]) -> None:
    header["model.norm.wait"] = header.pop(NORM)


def reshape(header: dict[str, Any]) -> None:
    header[NORM]["shape"] = [2, header[NORM]["shape"][0] // 2]


def retype(header: dict[str, Any]) -> None:
    header[NORM]["dtype"] = "I16"


def contradict(header: dict[str, Any]) -> None:
    header[NORM]["shape"] = [7]


def test_a_missing_directory_or_file_is_named(copy: Path) -> None:
    refused(copy / "none", "no directory")
    with pytest.raises(
        ValueError, match=r"model is empty; give a directory with config\.json, or 'quire-demo'"
    ):
        LLM("")
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        original = (copy / name).read_bytes()
        (copy / name).unlink()
        refused(copy, re.escape(name))
        (copy / name).write_bytes(original)
    LLM(copy)


@pytest.mark.parametrize(
    ("breakage", "pattern"),
    [
        (truncate, r"model\.safetensors: .*truncated"),
        (lambda p: p.write_bytes(b""), r"model\.safetensors: has 0 bytes"),
        (lambda p: p.write_bytes(b"\xff" * 64), r"model\.safetensors: the header claims"),
        (lambda p: rewrite_header(p, rename), r"tensor 'model\.norm\.weight' is missing"),
        (
            lambda p: rewrite_header(p, reshape),
            r"has shape \[2, \d+\], the config asks for \[\d+\]",
        ),
        (lambda p: rewrite_header(p, retype), r"has dtype I16; F32, F16 and BF16 are supported"),
        (lambda p: rewrite_header(p, contradict), r"'model\.norm\.weight': data_offsets span"),
    ],
)
def test_bad_weights_are_named(copy: Path, breakage: Callable[[Path], None], pattern: str) -> None:
    breakage(copy / "model.safetensors")
    refused(copy, pattern)


@pytest.mark.parametrize(
    ("changes", "pattern"),
    [
        (
            {"architectures": ["Gpt9ForCausalLM"]},
            "architecture 'Gpt9ForCausalLM' is not supported; ",
        ),
        ({"architectures": None}, "key 'architectures' is missing"),
        ({"architectures": []}, "architecture '' is not supported"),
        ({"hidden_size": None}, "key 'hidden_size' is missing"),
        ({"hidden_size": "wide"}, "'hidden_size' must be a whole number"),
        ({"hidden_size": -3}, "'hidden_size' must be a whole number from 1"),
        ({"num_key_value_heads": 3}, "'num_key_value_heads' 3 does not divide"),
        ({"hidden_act": "tanh"}, "'hidden_act' 'tanh' is not supported"),
        ({"num_hidden_layers": 3}, "no place for tensor 'model.layers.3"),
        ({"num_hidden_layers": 90}, r"tensor 'model\.layers\.\d+\.[a-z_.]+' is missing"),
        ({"vocab_size": 7}, "has shape"),
        ({"rope_parameters": {"rope_type": "spiral"}}, "rope_type 'spiral' is not supported"),
        ({"rope_parameters": {"rope_type": "linear"}}, "key 'rope_parameters.factor' is missing"),
        ({"head_dim": 32}, "has shape"),
        ({"head_dim": 24}, "the head size must be a multiple of 16"),
    ],
)
def test_bad_configs_are_named(copy: Path, changes: dict[str, Any], pattern: str) -> None:
    edit(copy / "config.json", **changes)
    refused(copy, pattern)


def test_configs_that_are_not_json_are_named(copy: Path) -> None:
    (copy / "config.json").write_text("{not json")
    refused(copy, r"config\.json: not valid JSON")


@pytest.mark.parametrize(
    ("arguments", "pattern"),
    [
        ({"max_model_len": 10**6}, "max_model_len 1000000 is more than the model supports: 2048"),
        ({"num_gpu_blocks_override": 5}, "the KV cache holds 64 tokens"),
        ({"kv_cache_memory_bytes": 10**5}, "lower max_model_len, or raise kv_cache_memory_bytes"),
        ({"dtype": "int3"}, "dtype must be 'auto'"),
        ({"device": "tpu"}, "device must be"),
        ({"device": "cuda:99"}, "device 'cuda:99' cannot be used"),
        ({"dtype": "float16", "device": "cpu"}, "dtype 'float16' is not computed on the CPU"),
        ({"block_size": 17}, "block_size must be 16, 32 or 64, got 17"),
        ({"tensor_parallel_size": 3}, "tensor_parallel_size 3 does not divide"),
        (
            {"enable_chunked_prefill": False, "max_num_batched_tokens": 10},
            "max_num_batched_tokens 10",
        ),
    ],
)
def test_bad_engine_arguments_are_named(demo_model: Path, arguments: dict[str, Any], pattern: str) -> None:
    refused(demo_model, pattern, **arguments)


@pytest.mark.parametrize("max_model_len", [2, 10, 15, 17])
@pytest.mark.parametrize("options", [{}, {"block_size": 64}, {"max_num_seqs": 200}])
def test_a_sequence_may_be_shorter_than_a_block(
    demo_model: Path, max_model_len: int, options: dict[str, int]
) -> None:
    llm = LLM(demo_model, max_model_len=max_model_len, **options)
    params = SamplingParams(temperature=0, max_tokens=100, ignore_eos=True)
    outputs = llm.generate([[5 + i] for i in range(200)], params, use_tqdm=False)
    assert {len(output.outputs[0].token_ids) for output in outputs} == {max_model_len - 1}


def test_an_unknown_engine_argument_is_refused(demo_model: Path) -> None:
    with pytest.raises(TypeError):
        LLM(demo_model, max_modle_len=10)


@pytest.mark.parametrize(
    ("prompt", "pattern"),
    [
        ("", "prompt is empty"),
        ([], "prompt is empty"),
        ([1, 2, 10**6], r"prompt_token_ids\[2\] is 1000000; ids go from 0 to"),
        ([-1], r"prompt_token_ids\[0\] is -1"),
        ([5] * 64, "prompt has 64 tokens; with max_model_len 64 it may have at most 63"),
        ({"text": "x"}, "a prompt dictionary must hold"),
    ],
)
def test_bad_prompts_are_named_and_nothing_is_run(llm: LLM, prompt: Any, pattern: str) -> None:
    steps = llm.stats().num_steps
    with pytest.raises(ValueError, match=pattern):
        llm.generate(["a good prompt", prompt], use_tqdm=False)
    assert llm.stats().num_steps == steps
    assert llm.stats().num_waiting_reqs == 0
    assert llm.generate("a good prompt", use_tqdm=False)[0].finished


def test_a_stream_of_nothing_is_refused(llm: LLM) -> None:
    nothings: list[Prompt] = ["", []]
    for nothing in nothings:
        with pytest.raises(ValueError, match="prompt is empty"):
            next(llm.stream(nothing))
    with pytest.raises(TypeError):
        next(llm.stream(["a", "b"]))  # type: ignore[arg-type]


def test_token_ids_of_parameters_are_checked_against_the_vocabulary(llm: LLM) -> None:
    for params, field in (
        (SamplingParams(logit_bias={10**6: 1.0}), "logit_bias"),
        (SamplingParams(stop_token_ids=[10**6]), "stop_token_ids"),
    ):
        with pytest.raises(ValueError, match=f"{field} has"):
            llm.generate("hello", params, use_tqdm=False)


def test_parameters_out_of_range_are_refused_where_they_are_made() -> None:
    for field, value in (
        ("temperature", -1.0),
        ("top_k", -5),
        ("top_p", 0.0),
        ("min_p", 2.0),
        ("presence_penalty", 3.0),
        ("frequency_penalty", -3.0),
        ("repetition_penalty", 0.0),
        ("max_tokens", 0),
        ("min_tokens", 99),
        ("stop", [""]),
        ("n", 0),
        ("logprobs", -2),
        ("logprob_token_ids", [-1]),
        ("allowed_token_ids", []),
    ):
        with pytest.raises(ValueError, match=field):
            SamplingParams(**{field: value})  # type: ignore[arg-type]


def test_mismatched_lists_are_refused(llm: LLM) -> None:
    with pytest.raises(ValueError, match="sampling_params has 1 entries for 2 prompts"):
        llm.generate(["a", "b"], [SamplingParams()], use_tqdm=False)
    with pytest.raises(ValueError, match="sampling_params has more than 2 entries for 2 prompts; give"):
        llm.generate(["a", "b"], repeat(SamplingParams()), use_tqdm=False)  # which never ends
    with pytest.raises(ValueError, match="cache_salt has more than 1 entries for 1 prompts"):
        llm.generate("a", use_tqdm=False, cache_salt=repeat("salt"))
    with pytest.raises(TypeError, match="cache_salt"):
        llm.generate(["a", "b"], use_tqdm=False, cache_salt={"a", "b"})  # in any order


def test_a_request_id_in_use_is_refused(demo_model: Path) -> None:
    engine = LLMEngine(demo_model)
    engine.add_request("same", "hello")
    with pytest.raises(ValueError, match="request_id 'same' is in use"):
        engine.add_request("same", "hello")
    while engine.has_unfinished_requests():
        engine.step()
    engine.add_request("same", "hello")


def test_a_full_queue_is_refused(demo_model: Path) -> None:
    engine = LLMEngine(demo_model, max_queued_requests=2)
    engine.add_request("0", "hello")
    engine.add_request("1", "hello")
    with pytest.raises(MemoryError, match="exceed max_queued_requests 2"):
        engine.add_request("2", "hello")


def test_chat_without_a_template_is_refused(copy: Path) -> None:
    edit(copy / "tokenizer_config.json", chat_template=None)
    llm = LLM(copy)
    with pytest.raises(ValueError, match="chat"):
        llm.chat([{"role": "user", "content": "hi"}], use_tqdm=False)
    assert llm.generate("hi", use_tqdm=False)[0].finished


def test_text_without_a_tokenizer_is_refused(demo_model: Path) -> None:
    llm = LLM(demo_model, skip_tokenizer_init=True)
    with pytest.raises(ValueError, match="skip_tokenizer_init"):
        llm.generate("hello", use_tqdm=False)
    assert llm.generate([1, 2, 3], use_tqdm=False)[0].outputs[0].text == ""
