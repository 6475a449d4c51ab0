"""Adapters add what PEFT adds, each to the rows of its own requests, whatever else is in the batch."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lora_adapters import Peft, merged_logits, write_adapter
from model_cases import CASES
from numpy.typing import NDArray
from paths import ROOT
from quire import LLM, AsyncLLM, BeamSearchParams, LLMEngine, LoRARequest, RequestOutput, SamplingParams

FLOAT32_ERROR = 1e-4  # of the largest logit
NUM_TOKENS = 300
# What a config's adapters are: ranks, scales and modules that differ.
KINDS: list[dict[str, Any]] = [
    {"r": 8},
    {"r": 1, "lora_alpha": 3},
    {"r": 16, "use_rslora": True},
    {"r": 12, "lora_alpha": 5},
]
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
LLAMA_KINDS: list[dict[str, Any]] = [
    *KINDS,
    {"r": 16, "target_modules": ["q_proj"]},
    {"r": 4, "target_modules": ["k_proj", "v_proj", "up_proj"]},
    {"r": 32, "target_modules": ["o_proj", "down_proj"]},
    {"r": 5, "target_modules": ["gate_proj", "q_proj"], "rank_pattern": {"q_proj": 9}},
    {"r": 3, "alpha_pattern": {"model.layers.0.mlp.up_proj": 1, "down_proj": 24}},
    {"r": 64, "lora_alpha": 64, "layers_to_transform": [1], "target_modules": [*ATTENTION, "up_proj"]},
]
# Of each way in which a checkpoint has its linears.
MODELS: dict[str, list[dict[str, Any]]] = {
    "llama-biases": KINDS,
    "qwen3-gqa-128": KINDS,
    "gemma3-gqa-64": KINDS,
    "phi3-mha-64": KINDS,
    "gpt-neox-mha-64": KINDS,
    "gpt2-mha-64": KINDS,
    "opt-mha-64": KINDS,
    "bloom-mha-64": KINDS,
    "mixtral-gqa-64": [kind | {"target_modules": ATTENTION} for kind in KINDS],
    "qwen2-moe-gqa-64": [
        kind | {"target_modules": [*ATTENTION, "shared_expert.gate_proj", "shared_expert.down_proj"]}
        for kind in KINDS
    ],
}


def make_adapters(model: Path, root: Path, kinds: Sequence[dict[str, Any]]) -> dict[str, Path]:
    return {f"a{i}": write_adapter(model, root / f"a{i}", i, **kind) for i, kind in enumerate(kinds)}


def make_prompts(count: int, vocab_size: int, longest: int = NUM_TOKENS) -> list[list[int]]:
    rng = np.random.default_rng(3)
    return [
        [int(t) for t in rng.integers(0, vocab_size, longest - longest * i // (count + 1))]
        for i in range(count)
    ]


def requests(adapters: dict[str, Path], names: Sequence[str | None]) -> list[LoRARequest | None]:
    return [None if name is None else LoRARequest(name, 0, adapters[name]) for name in names]


def make_llm(model: Path, **changes: Any) -> LLM:
    options: dict[str, Any] = {
        "dtype": "float32",
        "enable_lora": True,
        "max_loras": 16,
        "max_lora_rank": 64,
        "max_logprobs": -1,
        "skip_tokenizer_init": True,
        "num_threads": 1,
        "max_num_batched_tokens": 256,  # prompts are cut
        "max_model_len": 512,
    }
    return LLM(model, **(options | changes))


def prompt_logprobs(
    llm: LLM, prompts: list[list[int]], given: list[LoRARequest | None]
) -> list[NDArray[np.float64]]:
    """Of all of the vocabulary, behind each token of each prompt but the last."""
    params = SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=-1, detokenize=False)
    outputs = llm.generate(prompts, params, lora_request=given, use_tqdm=False)
    found = []
    for output in outputs:
        assert output.outputs[0].error == "" and output.prompt_logprobs is not None
        rows = np.empty((len(output.prompt_logprobs) - 1, llm.model.vocab_size))
        for row, position in zip(rows, output.prompt_logprobs[1:], strict=True):
            assert position is not None and len(position) == len(row)
            for token, entry in position.items():
                row[token] = entry.logprob
        found.append(rows)
    return found


def assert_logits_agree(ours: NDArray[np.float64], theirs: torch.Tensor) -> None:
    """Ours are log-probabilities: up to what a row has in common, they are logits."""
    assert theirs.abs().max() > 5
    expected = torch.log_softmax(theirs.double(), -1).numpy()[:-1]
    difference = ours - expected
    difference -= difference.mean(axis=1, keepdims=True)
    assert np.abs(difference).max() <= FLOAT32_ERROR * max(1.0, float(theirs.abs().max()))


def test_ten_adapters_and_none_in_one_batch(make_model: Callable[..., Path], tmp_path: Path) -> None:
    model = make_model(CASES["llama-gqa-64"])
    adapters = make_adapters(model, tmp_path, LLAMA_KINDS)
    assert len(adapters) == 10
    names = [*adapters, None]
    prompts = make_prompts(len(names), CASES["llama-gqa-64"].vocab_size)
    given = requests(adapters, names)
    llm = make_llm(model)
    mixed = prompt_logprobs(llm, prompts, given)
    peft = Peft(model, adapters)
    base = [peft.logits(prompt, None) for prompt in prompts]
    for name, prompt, ours, without in zip(names, prompts, mixed, base, strict=True):
        theirs = peft.logits(prompt, name)
        assert name is None or (theirs - without).abs().max() > 1  # it says something else
        assert_logits_agree(ours, theirs)
    # Merged into the weights: the same up to rounding, which is another.
    for name, prompt, ours in list(zip(names, prompts, mixed, strict=True))[2:6]:
        assert name is not None
        assert_logits_agree(ours, merged_logits(model, adapters[name], prompt))
    # A request's bits do not depend on the others; and without an adapter they are those of a plain engine.
    for i in (0, 6, 10):
        [alone] = prompt_logprobs(llm, [prompts[i]], [given[i]])
        np.testing.assert_array_equal(alone, mixed[i])
    plain = make_llm(model, enable_lora=False)
    [alone] = prompt_logprobs(plain, [prompts[10]], [None])
    np.testing.assert_array_equal(alone, mixed[10])


@pytest.mark.parametrize("name", MODELS)
def test_adapters_of_each_kind_of_model(name: str, make_model: Callable[..., Path], tmp_path: Path) -> None:
    config = CASES[name]
    model = make_model(config)
    adapters = make_adapters(model, tmp_path, MODELS[name])
    names = [*adapters, None]
    prompts = make_prompts(len(names), config.vocab_size, 130)  # behind the end of each window
    peft = Peft(model, adapters)
    for ours, prompt, adapter in zip(
        prompt_logprobs(make_llm(model), prompts, requests(adapters, names)), prompts, names, strict=True
    ):
        assert_logits_agree(ours, peft.logits(prompt, adapter))


@pytest.mark.parametrize("name", ["llama-gqa-64", "gpt-neox-mha-64", "phi3-mha-64"])
def test_two_ranks_have_their_shares(name: str, make_model: Callable[..., Path], tmp_path: Path) -> None:
    config = CASES[name]
    model = make_model(config)
    adapters = make_adapters(model, tmp_path, KINDS[1:])
    names = [*adapters, None]
    prompts = make_prompts(len(names), config.vocab_size, 120)
    peft = Peft(model, adapters)
    ours = prompt_logprobs(make_llm(model, tensor_parallel_size=2), prompts, requests(adapters, names))
    for rows, prompt, adapter in zip(ours, prompts, names, strict=True):
        assert_logits_agree(rows, peft.logits(prompt, adapter))


def test_bfloat16_is_as_good_as_pefts(make_model: Callable[..., Path], tmp_path: Path) -> None:
    model = make_model(CASES["llama-gqa-64"], dtype="bfloat16")
    adapters = make_adapters(model, tmp_path, KINDS)
    names = list(adapters)
    prompts = make_prompts(len(names), CASES["llama-gqa-64"].vocab_size)
    ours = prompt_logprobs(make_llm(model, dtype="bfloat16"), prompts, requests(adapters, names))
    exact, theirs = Peft(model, adapters), Peft(model, adapters, torch.bfloat16)
    errors = np.zeros(2)
    for rows, prompt, name in zip(ours, prompts, names, strict=True):
        right = torch.log_softmax(exact.logits(prompt, name).double(), -1).numpy()[:-1]
        peft = torch.log_softmax(theirs.logits(prompt, name).double(), -1).numpy()[:-1]
        errors += [np.square(rows - right).sum(), np.square(peft - right).sum()]
    assert 0 < errors[0] <= errors[1]


def test_answers_are_the_same_however_they_are_scheduled(
    make_model: Callable[..., Path], tmp_path: Path
) -> None:
    """Chunks, cached prefixes, preemption, and fewer slots than adapters, so that these come and go."""
    config = CASES["llama-gqa-64"]
    model = make_model(config)
    adapters = make_adapters(model, tmp_path, LLAMA_KINDS[:6])
    shared, *others = make_prompts(9, config.vocab_size, 200)
    names = [*adapters, None, *adapters, None]
    prompts = [shared[: 64 + 16 * (i % 3)] + others[i % 8][:9] for i in range(len(names))]
    params = SamplingParams(max_tokens=60, temperature=0, ignore_eos=True, logprobs=1, detokenize=False)

    def answers(llm: LLM) -> list[list[tuple[int, float]]]:
        outputs = llm.generate(prompts, params, lora_request=requests(adapters, names), use_tqdm=False)
        return [scored(output) for output in outputs]

    expected = answers(make_llm(model))
    assert len({tuple(answer) for answer in expected[:7]}) == 7
    crowded = make_llm(
        model,
        max_loras=3,
        max_cpu_loras=4,
        num_gpu_blocks_override=26,
        max_num_batched_tokens=64,
        max_num_seqs=8,
        max_model_len=256,
    )
    for _ in range(2):
        assert answers(crowded) == expected
    stats = crowded.stats()
    assert stats.num_preemptions > 0
    assert stats.prefix_cache_hits > 0
    assert sum(info.is_loaded for info in crowded.list_loras()) == 4


def scored(output: RequestOutput) -> list[tuple[int, float]]:
    completion = output.outputs[0]
    assert completion.error == "" and completion.logprobs is not None
    return [
        (token, position[token].logprob)
        for token, position in zip(completion.token_ids, completion.logprobs, strict=True)
    ]


# ---- quire-demo's two adapters (tools/demo_model/train_adapters.py) --------------------------------------

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
    assert demo.remove_lora(7) and not demo.remove_lora(7) and not demo.remove_lora("sailor")
    assert not demo.pin_lora("sailor")
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
    for options, error in [
        ({"deadline_ms": 200}, "deadline_ms 200 has passed"),
        ({"queue_timeout_ms": 100}, "queue_timeout_ms has passed before its first step"),
    ]:
        [output] = llm.generate("Hi", GREEDY, use_tqdm=False, lora_request=as_json, **options)
        completion = output.outputs[0]
        assert (completion.finish_reason, completion.error) == ("abort", error)
    assert llm.stats().num_running_reqs == 1
    waiting = llm.stream(llm.apply_chat_template(chats(QUESTIONS[1:2])[0]), GREEDY, lora_request=as_json)
    stream.close()
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
        ("", TRAINED["sailor"], "lora_name must have 1 to 512 bytes, got 0"),
        ("a\nb", TRAINED["sailor"], "lora_name must not hold control characters"),
        ("x", "", "lora_path is empty"),
        ("x", tmp_path / "none", "there is no such directory"),
        ("x", tmp_path, "has no adapter_config.json"),
    ]
    for name, path, complaint in bad:
        with pytest.raises(ValueError, match=complaint):
            narrow.add_lora(LoRARequest(name, 0, path))
    with pytest.raises(TypeError, match="lora_request must be a LoRARequest, got 'sailor'"):
        demo.generate("Hi", GREEDY, use_tqdm=False, lora_request="sailor")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="lora_request has 1 entries for 2 prompts"):
        demo.generate(["Hi", "Ho"], GREEDY, use_tqdm=False, lora_request=[None])
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
