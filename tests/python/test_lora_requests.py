"""Requests of the bundled model and its two trained adapters (tools/demo_model/train_adapters.py)."""

from __future__ import annotations

import asyncio
import itertools
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from lora_adapters import Peft, requests, write_adapter
from model_cases import CASES
from paths import ROOT
from quire import LLM, AsyncLLM, BeamSearchParams, LLMEngine, LoRARequest, SamplingParams

DATA = ROOT / "tests" / "python" / "data"
TRAINED = {name: DATA / "adapters" / name for name in ("sailor", "json")}
QUESTIONS = [
    "List the days of the week.",
    "What is 7 plus 8?",
    "What is a KV cache?",
    "Count from 1 to 9.",
    "Which is larger, 31 or 13?",
    "List the months of the year.",
]
GREEDY = SamplingParams(temperature=0, max_tokens=64)


@pytest.fixture(scope="module")
def demo_engine(demo_model: Path) -> LLM:
    return LLM(demo_model, dtype="float32", enable_lora=True, max_loras=2, max_cpu_loras=2)


@pytest.fixture
def demo(demo_engine: LLM) -> Iterator[LLM]:
    """Without any adapter, before and afterwards."""
    assert demo_engine.list_loras() == []
    yield demo_engine
    for info in demo_engine.list_loras():
        assert demo_engine.remove_lora(info.lora_name)


def chats(questions: Sequence[str]) -> list[list[dict[str, str]]]:
    return [[{"role": "user", "content": question}] for question in questions]


def test_two_trained_adapters_answer_in_one_batch_as_they_should(demo: LLM) -> None:
    names = [None, "sailor", "json"] * len(QUESTIONS)
    asked = [question for question in QUESTIONS for _ in range(3)]
    outputs = demo.chat(chats(asked), GREEDY, use_tqdm=False, lora_request=requests(TRAINED, names))
    texts = [output.outputs[0].text for output in outputs]
    for plain, sailor, as_json in zip(texts[::3], texts[1::3], texts[2::3], strict=True):
        assert "Ahoy" not in plain and not plain.startswith("{")
        assert sailor.startswith("Ahoy! ") and sailor.endswith(" Fair winds!")
        assert list(json.loads(as_json)) == ["answer"]
    assert json.loads(texts[5])["answer"] == texts[3] == "7 plus 8 is 15."


def test_greedy_answers_of_trained_adapters_equal_pefts(demo: LLM, demo_model: Path) -> None:
    """One pass over prompt and answer: each token is the likeliest after those before it."""
    entries = json.loads((DATA / "demo_prompts.json").read_text())[::16]
    names = [("sailor", "json")[i % 2] for i in range(len(entries))]
    tokenizer = demo.get_tokenizer()
    prompts = [
        tokenizer.encode(
            entry["prompt"] if "prompt" in entry else demo.apply_chat_template(entry["messages"]),
            add_special_tokens=False,
        )
        for entry in entries
    ]
    assert len(prompts) >= 10
    params = SamplingParams(temperature=0, max_tokens=64, ignore_eos=True)
    outputs = demo.generate(prompts, params, use_tqdm=False, lora_request=requests(TRAINED, names))
    peft = Peft(demo_model, TRAINED)
    for prompt, name, output in zip(prompts, names, outputs, strict=True):
        answer = list(output.outputs[0].token_ids)
        assert len(answer) == 64
        likeliest = peft.logits(prompt + answer, name).argmax(-1)[len(prompt) - 1 : -1]
        assert likeliest.tolist() == answer


def test_adapters_come_and_go_while_requests_run(demo: LLM) -> None:
    assert demo.add_lora(LoRARequest("sailor", 7, TRAINED["sailor"]))
    assert not demo.add_lora(LoRARequest("sailor", 7, TRAINED["sailor"]))
    assert demo.pin_lora(np.int64(7))
    assert demo.remove_lora(7) and not demo.remove_lora(7) and not demo.remove_lora("sailor")
    assert not demo.pin_lora("sailor")
    for other in (True, 7.0, None, b"sailor"):
        with pytest.raises(TypeError, match="lora must be a name or a lora_int_id, got"):
            demo.remove_lora(other)  # type: ignore[arg-type]
    given = LoRARequest("sailor", 7, TRAINED["sailor"])
    stream = demo.stream("User: List the days of the week.\nAssistant:", GREEDY, lora_request=given)
    text = next(stream).outputs[0].text
    [info] = [info for info in demo.list_loras() if info.lora_name == "sailor"]
    assert (info.lora_int_id, info.rank, info.is_loaded, info.num_requests) == (7, 4, True, 1)
    assert demo.remove_lora(7)  # it goes when its last request is over
    assert [info.lora_name for info in demo.list_loras() if info.lora_name == "sailor"] == []
    text += "".join(output.outputs[0].text for output in stream)
    again = demo.generate(
        "User: List the days of the week.\nAssistant:", GREEDY, use_tqdm=False, lora_request=given
    )
    assert again[0].outputs[0].text == text


def test_an_adapter_is_replaced_in_place(demo: LLM, tmp_path: Path) -> None:
    prompt = "User: List the days of the week.\nAssistant:"
    mine = tmp_path / "mine"
    shutil.copytree(TRAINED["sailor"], mine)
    given = LoRARequest("mine", 7, mine)
    [sailor] = demo.generate(prompt, GREEDY, use_tqdm=False, lora_request=given)
    stream = demo.stream(prompt, GREEDY, lora_request=given)
    text = next(stream).outputs[0].text
    shutil.rmtree(mine)
    shutil.copytree(TRAINED["json"], mine)
    assert not demo.add_lora(given)
    assert demo.add_lora(LoRARequest("mine", 7, mine, load_inplace=True))
    [as_json] = demo.generate(prompt, GREEDY, use_tqdm=False, lora_request=given)
    assert as_json.outputs[0].text.startswith('{"answer"')
    text += "".join(output.outputs[0].text for output in stream)
    assert text == sailor.outputs[0].text
    # A broken one replaces nothing.
    (mine / "adapter_config.json").write_text("{")
    with pytest.raises(ValueError, match=r"adapter_config\.json"):
        demo.add_lora(LoRARequest("mine", 7, mine, load_inplace=True))
    [again] = demo.generate(prompt, GREEDY, use_tqdm=False, lora_request=given)
    assert again.outputs[0].text == as_json.outputs[0].text
    with pytest.raises(TypeError, match="load_inplace must be a bool, got 1"):
        LoRARequest("mine", 7, mine, 1)  # type: ignore[arg-type]


def test_searches_and_several_answers_have_the_adapter(demo: LLM) -> None:
    adapter = LoRARequest("json", 0, TRAINED["json"])
    prompt = demo.apply_chat_template(chats(QUESTIONS[1:2])[0])
    [found] = demo.beam_search(prompt, BeamSearchParams(beam_width=3, max_tokens=20), lora_request=adapter)
    text = found.sequences[0].text
    assert text is not None and json.loads(text.removeprefix(prompt)) == {"answer": "7 plus 8 is 15."}
    params = SamplingParams(n=3, temperature=0.7, seed=1, max_tokens=40)
    [output] = demo.generate(prompt, params, use_tqdm=False, lora_request=adapter)
    assert all(completion.text.startswith('{"answer": "') for completion in output.outputs)


def test_engines_that_are_stepped_or_awaited(demo_model: Path, demo: LLM) -> None:
    adapter = LoRARequest("sailor", 1, TRAINED["sailor"])
    prompt = demo.apply_chat_template(chats(QUESTIONS[:1])[0])
    [expected] = demo.generate(prompt, GREEDY, use_tqdm=False, lora_request=adapter)
    engine = LLMEngine(demo_model, dtype="float32", enable_lora=True, max_cpu_loras=1)
    engine.add_request("a", prompt, GREEDY, lora_request=adapter)
    with pytest.raises(MemoryError, match="all 1 adapters in memory"):
        engine.add_request("b", prompt, GREEDY, lora_request=LoRARequest("json", 2, TRAINED["json"]))
    outputs = []
    while engine.has_unfinished_requests():
        outputs += engine.step()
    assert outputs[-1].outputs[0].text == expected.outputs[0].text
    engine.add_request("b", prompt, GREEDY, lora_request=LoRARequest("json", 2, TRAINED["json"]))

    async def ask() -> str:
        llm = AsyncLLM(demo_model, dtype="float32", enable_lora=True)
        assert await llm.add_lora(adapter) and not await llm.add_lora(adapter)
        text = ""
        async for output in llm.generate(prompt, GREEDY, lora_request=adapter):
            text = output.outputs[0].text
        assert await llm.pin_lora("sailor")
        assert llm.remove_lora("sailor")
        await llm.shutdown()
        return text

    assert asyncio.run(ask()) == expected.outputs[0].text


def test_who_finds_no_room_waits_and_not_longer_than_it_may(demo_model: Path) -> None:
    llm = LLM(demo_model, enable_lora=True, max_cpu_loras=1, num_threads=1)
    sailor, as_json = (LoRARequest(name, 0, TRAINED[name]) for name in ("sailor", "json"))
    assert llm.add_lora(sailor) and llm.add_lora(as_json)
    assert [info.is_loaded for info in llm.list_loras()] == [False, True]
    long = SamplingParams(temperature=0, max_tokens=1500, ignore_eos=True)
    stream = llm.stream("Once upon a time", long, lora_request=sailor)
    next(stream)
    assert [info.is_loaded for info in llm.list_loras()] == [True, False]
    for deadline_ms, queue_timeout_ms, error in [
        (200, 0, "deadline_ms 200 has passed"),
        (200, 100, "queue_timeout_ms has passed before its first step"),
    ]:
        [output] = llm.generate(
            "Hi",
            GREEDY,
            use_tqdm=False,
            lora_request=as_json,
            deadline_ms=deadline_ms,
            queue_timeout_ms=queue_timeout_ms,
        )
        completion = output.outputs[0]
        assert (completion.finish_reason, completion.error) == ("abort", error)
    assert llm.stats().num_running_reqs == 1
    waiting = llm.stream(llm.apply_chat_template(chats(QUESTIONS[1:2])[0]), GREEDY, lora_request=as_json)
    del stream  # which aborts it
    assert "".join(output.outputs[0].text for output in waiting) == '{"answer": "7 plus 8 is 15."}'


def test_what_is_refused(demo_model: Path, demo: LLM, tmp_path: Path) -> None:
    plain = LLM(demo_model, num_threads=1)
    good = LoRARequest("sailor", 1, TRAINED["sailor"])
    with pytest.raises(ValueError, match="the engine has no adapters: set enable_lora"):
        plain.generate("Hi", GREEDY, use_tqdm=False, lora_request=good)
    with pytest.raises(ValueError, match="max_cpu_loras 1 is less than max_loras 2"):
        LLM(demo_model, enable_lora=True, max_loras=2, max_cpu_loras=1)
    narrow = LLM(demo_model, enable_lora=True, max_lora_rank=4, num_threads=1)
    with pytest.raises(ValueError, match=r"'model.layers.0.*' has rank 8, and max_lora_rank is 4: raise it"):
        narrow.add_lora(LoRARequest("json", 1, TRAINED["json"]))
    assert narrow.add_lora(good)
    with pytest.raises(ValueError, match=r"lora_name 'sailor' is that of .*: remove that one first"):
        narrow.add_lora(LoRARequest("sailor", 1, TRAINED["json"]))
    with pytest.raises(ValueError, match=r"lora_int_id 1 is that of 'sailor'"):
        narrow.add_lora(LoRARequest("other", 1, TRAINED["sailor"]))
    bad: list[tuple[str, str | Path, str]] = [
        ("a\nb", TRAINED["sailor"], "lora_name must not hold control characters"),
        ("x", tmp_path / "none", "there is no such directory"),
        ("x", tmp_path, "has no adapter_config.json"),
    ]
    for name, path, complaint in bad:
        with pytest.raises(ValueError, match=complaint):
            narrow.add_lora(LoRARequest(name, 0, path))
    with pytest.raises(TypeError, match="lora_request must be a LoRARequest, got 'sailor'"):
        demo.generate("Hi", GREEDY, use_tqdm=False, lora_request="sailor")  # type: ignore[arg-type]
    # What has no order is no list; what never ends is not read to its end.
    for unordered in ({"lora_name": "sailor"}, {good, None}, frozenset({good}), b"sailor"):
        with pytest.raises(TypeError, match=r"lora_request must be a LoRARequest, got [{fb]"):
            demo.generate(["Hi", "Ho"], GREEDY, use_tqdm=False, lora_request=unordered)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="lora_request has 1 entries for 2 prompts"):
        demo.generate(["Hi", "Ho"], GREEDY, use_tqdm=False, lora_request=[None])
    with pytest.raises(ValueError, match="lora_request has more than 2 entries for 2 prompts"):
        demo.generate(["Hi", "Ho"], GREEDY, use_tqdm=False, lora_request=itertools.repeat(None, 1000))
    for name, number, path, complaint in [
        ("", 1, "y", "lora_name is empty; give the name that requests call the adapter"),
        ("x", -1, "y", "lora_int_id must be at least 1, or 0 for none, got -1"),
        ("x", 1, "", "lora_path is empty; give a directory with adapter_config.json"),
    ]:
        with pytest.raises(ValueError, match=complaint):
            LoRARequest(name, number, path)
    with pytest.raises(TypeError, match="lora_int_id must be an int, got True"):
        LoRARequest("x", True, "y")
    with pytest.raises(TypeError, match="lora_name must be a string, got None"):
        LoRARequest(None, 1, "y")  # type: ignore[arg-type]
    # What is refused has left nothing behind.
    assert [info.lora_name for info in narrow.list_loras()] == ["sailor"]


def test_an_adapter_of_another_model_is_refused_by_what_differs(
    make_model: Callable[..., Path], tmp_path: Path, demo: LLM
) -> None:
    other = make_model(CASES["llama-gqa-80"])
    adapter = write_adapter(other, tmp_path / "other", 1)
    with pytest.raises(
        ValueError,
        match=r"adapter_model.safetensors: 'model.layers.0.mlp.down_proj' goes from 320 inputs to 320 "
        r"outputs, in this model from 768 to 256: it was made for another",
    ):
        demo.add_lora(LoRARequest("other", 0, adapter))
    gpt2 = write_adapter(make_model(CASES["gpt2-mha-64"]), tmp_path / "gpt2", 1)
    with pytest.raises(ValueError, match=r"'transformer.h.0.*' is no linear of this model"):
        demo.add_lora(LoRARequest("other", 0, gpt2))


def test_a_request_is_refused_where_no_thread_can_be_started_to_read_its_adapter_again(
    demo_model: Path,
) -> None:
    """In a process of its own, whose address space ends before a thread's stack does."""
    script = f"""
import resource
from quire import LLM, LoRARequest, SamplingParams
llm = LLM({str(demo_model)!r}, enable_lora=True, max_model_len=64, kv_cache_memory_bytes=1 << 24)
adapters = [LoRARequest(name, 0, {str(DATA / "adapters")!r} + "/" + name) for name in ("sailor", "json")]
for adapter in adapters:
    llm.add_lora(adapter)  # there is room for one
params = SamplingParams(max_tokens=2, ignore_eos=True)
llm.generate("a", params, use_tqdm=False)
pages = int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (1 << 20), resource.RLIM_INFINITY))
try:
    llm.generate("a", params, lora_request=adapters[0], use_tqdm=False)
except MemoryError as error:
    print(error)
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(len(llm.generate("a", params, lora_request=adapters[0], use_tqdm=False)[0].outputs[0].token_ids))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    refused, answered = done.stdout.splitlines()
    assert refused.startswith("no thread can be started that reads adapters again: ")
    assert answered == "2"


@pytest.mark.parametrize("kilobytes", [500, 2000])  # too few for the file, and for what is made of it
def test_an_adapter_that_memory_has_no_room_for_fails_alone(demo_model: Path, kilobytes: int) -> None:
    """In a process of its own, whose address space ends there."""
    script = f"""
import resource
from quire import LLM, LoRARequest, SamplingParams
llm = LLM(
    {str(demo_model)!r}, enable_lora=True, max_loras=2, max_model_len=64, kv_cache_memory_bytes=1 << 24
)
params = SamplingParams(max_tokens=2, ignore_eos=True)
first, second = [LoRARequest(name, 0, {str(DATA / "adapters")!r} + "/json") for name in ("first", "second")]
llm.generate("a", params, lora_request=first, use_tqdm=False)
pages = int(open("/proc/self/statm").read().split()[0])
end = pages * resource.getpagesize() + {kilobytes} * 1000
resource.setrlimit(resource.RLIMIT_AS, (end, resource.RLIM_INFINITY))
try:
    llm.add_lora(second)
except MemoryError as error:
    print(error)
print(len(llm.generate("a", params, lora_request=first, use_tqdm=False)[0].outputs[0].token_ids))
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(llm.add_lora(second))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    refused, answered, added = done.stdout.splitlines()
    assert refused.startswith("there is no memory for adapter 'second': ")
    assert refused.endswith("; remove others, or lower max_cpu_loras")
    assert (answered, added) == ("2", "True")


def test_kv_events_tell_whose_blocks_these_are(demo_model: Path) -> None:
    llm = LLM(demo_model, dtype="float32", enable_lora=True, enable_kv_cache_events=True, max_model_len=64)
    given = [LoRARequest("sailor", 7, TRAINED["sailor"]), None]
    salted = SamplingParams(max_tokens=1)
    llm.generate([list(range(5, 25))] * 2, salted, lora_request=given, cache_salt="mine", use_tqdm=False)
    told = {(event.lora_id, event.lora_name, event.cache_salt) for event in llm.take_kv_events()}
    assert told == {(7, "sailor", "mine"), (0, "", "mine")}


def test_a_prefix_is_shared_within_an_adapter_only(demo_model: Path, tmp_path: Path) -> None:
    llm = LLM(demo_model, dtype="float32", enable_lora=True, max_loras=3)
    prompt = "User: Tell me a story about a lighthouse and a keeper who could not sleep.\nAssistant: Once"

    def hits(adapter: LoRARequest | None) -> int:
        before = llm.stats().prefix_cache_hits
        llm.generate(prompt, GREEDY, use_tqdm=False, lora_request=adapter)
        return llm.stats().prefix_cache_hits - before

    copied = tmp_path / "mine"
    shutil.copytree(TRAINED["sailor"], copied)
    mine = LoRARequest("mine", 0, copied)
    assert hits(None) == 0 < hits(None)
    assert hits(mine) == 0 < hits(mine)
    llm.remove_lora("mine")
    assert hits(mine) > 0  # the same files under the same name
    llm.remove_lora("mine")
    shutil.rmtree(copied)
    shutil.copytree(TRAINED["json"], copied)
    assert hits(mine) == 0 < hits(mine)
