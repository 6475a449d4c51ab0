"""What the backend completes in config.pbtxt, and what it refuses to load."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
from gguf_files import write_gguf
from triton_server import TritonServer

INPUTS = {
    "text_input": ("TYPE_STRING", ["1"]),
    "input_ids": ("TYPE_INT32", ["-1"]),
    "stream": ("TYPE_BOOL", ["1"]),
    "sampling_parameters": ("TYPE_STRING", ["1"]),
    "exclude_input_in_output": ("TYPE_BOOL", ["1"]),
    "return_finish_reason": ("TYPE_BOOL", ["1"]),
    "return_cumulative_logprob": ("TYPE_BOOL", ["1"]),
    "return_logprobs": ("TYPE_BOOL", ["1"]),
    "return_prompt_logprobs": ("TYPE_BOOL", ["1"]),
    "return_num_input_tokens": ("TYPE_BOOL", ["1"]),
    "return_num_output_tokens": ("TYPE_BOOL", ["1"]),
    "return_output_ids": ("TYPE_BOOL", ["1"]),
    "return_usage": ("TYPE_BOOL", ["1"]),
    "request_id": ("TYPE_STRING", ["1"]),
    "cancel": ("TYPE_BOOL", ["1"]),
    "lora_name": ("TYPE_STRING", ["1"]),
    "stop_words": ("TYPE_STRING", ["-1"]),
    "bad_words": ("TYPE_STRING", ["-1"]),
    "messages": ("TYPE_STRING", ["1"]),
    "tools": ("TYPE_STRING", ["1"]),
    "return_message": ("TYPE_BOOL", ["1"]),
}
OUTPUTS = {
    "text_output": ("TYPE_STRING", ["-1"]),
    "output_ids": ("TYPE_INT32", ["-1", "-1"]),
    "finish_reason": ("TYPE_STRING", ["-1"]),
    "cumulative_logprob": ("TYPE_FP32", ["-1"]),
    "logprobs": ("TYPE_STRING", ["-1"]),
    "prompt_logprobs": ("TYPE_STRING", ["1"]),
    "num_input_tokens": ("TYPE_UINT32", ["1"]),
    "num_output_tokens": ("TYPE_UINT32", ["-1"]),
    "cum_log_probs": ("TYPE_FP32", ["-1"]),
    "output_log_probs": ("TYPE_FP32", ["-1", "-1"]),
    "message": ("TYPE_STRING", ["-1"]),
    "usage": ("TYPE_STRING", ["1"]),
}


def tensors(entries: list[Any]) -> dict[str, tuple[str, list[str]]]:
    return {e["name"]: (e["data_type"], [str(d) for d in e["dims"]]) for e in entries}


@pytest.fixture
def bare(server: TritonServer, demo_model: Path) -> Any:
    """A model whose config.pbtxt says `backend: "quire"` and no more; its files are in 1/."""
    server.write_model("bare")
    for file in demo_model.iterdir():
        link = server.repository / "bare" / "1" / file.name
        if not link.exists():
            os.symlink(file, link)
    server.load("bare")
    yield server
    server.unload("bare")


def test_the_backends_name_is_configuration_enough(bare: TritonServer) -> None:
    config = bare.request("v2/models/bare/config").json()
    assert tensors(config["input"]) == INPUTS
    assert all(entry["optional"] for entry in config["input"])
    assert tensors(config["output"]) == OUTPUTS
    assert config["model_transaction_policy"] == {"decoupled": True}
    assert config["max_batch_size"] == 0
    assert [group["kind"] for group in config["instance_group"]] == ["KIND_MODEL"]
    assert bare.generate("bare", text_input="Once", max_tokens=2)["text_output"].startswith("Once")


def test_metadata_lists_every_tensor(server: TritonServer) -> None:
    metadata = server.request("v2/models/demo").json()
    assert metadata["platform"] == "quire" or metadata["platform"] == ""
    assert [tensor["name"] for tensor in metadata["inputs"]] == list(INPUTS)
    assert [tensor["name"] for tensor in metadata["outputs"]] == list(OUTPUTS)


def test_decoupled_false_stays(server: TritonServer) -> None:
    config = server.request("v2/models/sync/config").json()
    assert config.get("model_transaction_policy", {}).get("decoupled", False) is False
    assert tensors(config["input"]) == INPUTS


def test_a_relative_model_is_looked_for_from_the_version_directory(
    server: TritonServer, models: Callable[..., None], demo_model: Path
) -> None:
    link = server.repository / "files"
    link.symlink_to(demo_model)
    try:
        models("relative", {"model": "../../files"})
        assert server.generate("relative", text_input="Once", max_tokens=2)["text_output"]
    finally:
        link.unlink()


def test_a_gguf_file_is_a_model(
    server: TritonServer, models: Callable[..., None], tmp_path: Path, demo_model: Path
) -> None:
    shutil.copytree(demo_model, tmp_path / "demo")
    write_gguf(tmp_path / "demo.gguf", tmp_path / "demo", "llama", gguf.GGMLQuantizationType.BF16)
    wanted = server.generate("demo", text_input="Once upon a time", max_tokens=12, temperature=0)
    models("file", {"model": tmp_path / "demo.gguf"})
    assert server.generate("file", text_input="Once upon a time", max_tokens=12, temperature=0) == wanted | {
        "model_name": "file"
    }


def test_engine_parameters_reach_the_engine(server: TritonServer, models: Callable[..., None]) -> None:
    models("short", {"max_model_len": 32}, decoupled=False)
    answer = server.request("v2/models/short/generate", {"text_input": "word " * 40})
    assert answer.status == 400
    assert "32" in answer.body


@pytest.mark.parametrize("group", ["count: 2", "kind: KIND_CPU count: 2", "kind: KIND_MODEL count: 2"])
def test_instances_on_one_device_share_an_engine(
    server: TritonServer, models: Callable[..., None], group: str
) -> None:
    models("crew", config=f"instance_group [ {{ {group} }} ]\n")
    assert tensors(server.request("v2/models/crew/config").json()["input"]) == INPUTS
    for _ in range(4):
        server.generate("crew", text_input="Once", max_tokens=3, ignore_eos=True)
    lines = [line for line in server.metrics().splitlines() if "generation_tokens_total{" in line]
    assert [float(line.split()[-1]) for line in lines if 'model="crew"' in line] == [12]


def test_requests_are_spread_over_the_engines_of_instances(
    server: TritonServer, models: Callable[..., None]
) -> None:
    """One on the CPU, and one where the parameter has it: the same here, but an engine of its own."""
    models("pair", config="instance_group [ { kind: KIND_CPU }, { kind: KIND_MODEL } ]\n")
    for _ in range(12):
        server.generate("pair", text_input="Once", max_tokens=3, ignore_eos=True)
    lines = [line for line in server.metrics().splitlines() if "generation_tokens_total{" in line]
    counts = [float(line.split()[-1]) for line in lines if 'model="pair"' in line]
    assert len(counts) == 2 and sum(counts) == 36 and min(counts) >= 3


def test_inputs_written_by_hand_are_kept(server: TritonServer, models: Callable[..., None]) -> None:
    """Config files for the vLLM backend have them."""
    config = """
input [ { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "text_output" data_type: TYPE_STRING dims: [ -1 ] } ]
"""
    models("by_hand", config=config)
    assert server.generate("by_hand", text_input="Once", max_tokens=2)["text_output"].startswith("Once")


GPU = "instance_group [ { kind: KIND_GPU count: 1 gpus: [ 99 ] } ]\n"
CPU = "instance_group [ { kind: KIND_CPU count: 2 } ]\n"
CACHE = "model_transaction_policy { decoupled: false }\nresponse_cache { enable: true }\n"
EMPTY_WARMUP = """model_warmup {
  name: "w" batch_size: 1
  inputs { key: "text_input" value { data_type: TYPE_STRING dims: [ 1 ] zero_data: true } }
}
"""
WRONG_INPUT = 'input [ { name: "text_input" data_type: TYPE_FP32 dims: [ 1 ] } ]\n'

# Parameters, the rest of config.pbtxt, and what the error says.
FAILURES: dict[str, tuple[dict[str, str], str, list[str]]] = {
    "unknown parameter": ({"max_modl_len": "5"}, "", ["max_modl_len"]),
    "text for a number": ({"max_num_seqs": "many"}, "", ["max_num_seqs", "many"]),
    "fraction for an integer": ({"max_num_seqs": "1.5"}, "", ["max_num_seqs", "1.5"]),
    "number too large": ({"max_num_seqs": "99999999999"}, "", ["max_num_seqs", "99999999999"]),
    "out of range": ({"block_size": "17"}, "", ["block_size", "17"]),
    "text for a flag": ({"enable_prefix_caching": "perhaps"}, "", ["enable_prefix_caching", "perhaps"]),
    "policy": ({"scheduling_policy": "lifo"}, "", ["scheduling_policy", "lifo"]),
    "no such directory": ({"model": "/no/such/directory"}, "", ["/no/such/directory"]),
    "empty number": ({"max_model_len": ""}, "", ["max_model_len"]),
    "arena": ({"kv_arena": "mine"}, "", ["kv_arena", "mine"]),
    "priorities": (
        {},
        "dynamic_batching { priority_levels: 2 default_priority_level: 1 }\n",
        ["priority_levels"],
    ),
    "batches": ({}, "max_batch_size: 2\n", ["max_batch_size is 2"]),
    "delays": (
        {},
        "dynamic_batching { default_queue_policy { timeout_action: DELAY } }\n",
        ["timeout_action", "DELAY", "REJECT"],
    ),
    "cached responses": ({}, CACHE, ["response_cache", "parameters"]),
    "a GPU that is not there": ({}, GPU, ["99"]),
    "instances elsewhere": ({"device": "cuda:1"}, CPU, ["'device' is", "cuda:1", "KIND_CPU"]),
    "passive instances": ({}, "instance_group [ { kind: KIND_CPU passive: true } ]\n", ["passive"]),
    "an empty warm-up": ({}, EMPTY_WARMUP, ["model_warmup 'w'", "text_input", "empty"]),
    "wrong dimensions": (
        {},
        'input [ { name: "text_input" data_type: TYPE_STRING dims: [ 2 ] } ]\n',
        ["text_input", "dims: [ 1 ]"],
    ),
    "wrong type of an input": ({}, WRONG_INPUT, ["text_input"]),
}


@pytest.mark.parametrize("case", FAILURES)
def test_a_model_that_cannot_be_served_fails_to_load_by_name(
    server: TritonServer, demo_model: Path, case: str
) -> None:
    parameters, config, words = FAILURES[case]
    server.write_model("broken", {"model": demo_model, **parameters}, config=config)
    answer = server.try_to_load("broken")
    assert answer.status == 400
    assert all(word in answer.body for word in words), answer.body


def test_a_version_directory_without_model_fails_to_load(server: TritonServer) -> None:
    server.write_model("empty")
    answer = server.try_to_load("empty")
    assert answer.status == 400
    assert "config.json" in answer.body or "model" in answer.body


def test_failed_loads_leave_no_memory_behind(server: TritonServer, demo_model: Path) -> None:
    def resident_bytes() -> int:
        import psutil

        return int(psutil.Process(server.process.pid).memory_info().rss)

    server.write_model("broken", {"model": demo_model, "kv_cache_memory_bytes": "64"})
    for _ in range(3):
        assert server.try_to_load("broken").status == 400
    before = resident_bytes()
    for _ in range(10):
        assert server.try_to_load("broken").status == 400
    assert resident_bytes() - before < 30e6  # one copy of the weights would be 15 MB each time
