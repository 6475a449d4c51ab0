"""Whatever holds prompts is read once and whole; what is no prompt is refused by name, value and remedy."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from quire import LLM, BeamSearchParams, RequestOutput, SamplingParams
from quire.prompts import conversation_list, prompt_content, prompt_list
from tokenizers import Tokenizer

PARAMS = SamplingParams(temperature=0, max_tokens=4)
TEXTS = ["Once upon a time", "The baker said", "1 2 3 4"]
IDS = [[5, 6, 7], [8, 9]]


class Column:
    """What a column of a table is like: iterable and sized, but no Sequence."""

    def __init__(self, values: list[Any]) -> None:
        self._values = values

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


@pytest.fixture(scope="module")
def llm(demo_model: Path) -> Iterator[LLM]:
    yield LLM(demo_model, max_model_len=64)


@pytest.mark.parametrize(
    "hold",
    [
        tuple,
        iter,
        deque,
        Column,
        np.array,
        lambda values: (value for value in values),
        lambda values: map(str, values),
        lambda values: {value: 0 for value in values}.keys(),
    ],
)
def test_prompts_come_in_any_iterable(llm: LLM, hold: Callable[[list[str]], Any]) -> None:
    outputs = llm.generate(hold(TEXTS), PARAMS, use_tqdm=False)
    assert [output.prompt for output in outputs] == TEXTS


@pytest.mark.parametrize(
    "prompt",
    [
        (5, 6, 7),
        iter([5, 6, 7]),
        range(5, 8),
        Column([5, 6, 7]),
        np.array([5, 6, 7]),
        np.array([5, 6, 7], dtype=np.uint16),
        [np.int64(5), np.int32(6), 7],
    ],
)
def test_token_ids_may_be_numpys_and_in_any_iterable(llm: LLM, prompt: Any) -> None:
    (output,) = llm.generate(prompt, PARAMS, use_tqdm=False)
    assert output.prompt_token_ids == [5, 6, 7]


def test_several_prompts_of_token_ids_may_be_numpys(llm: LLM) -> None:
    def ids(outputs: list[RequestOutput]) -> list[list[int]]:
        return [output.prompt_token_ids for output in outputs]

    forms: list[Any] = [
        [np.array(row) for row in IDS],
        map(iter, IDS),
        [{"prompt_token_ids": np.array(IDS[0])}, IDS[1]],
    ]
    for prompts in forms:
        assert ids(llm.generate(prompts, PARAMS, use_tqdm=False)) == IDS
    assert ids(llm.generate(np.array([[5, 6], [7, 8]]), PARAMS, use_tqdm=False)) == [[5, 6], [7, 8]]
    assert ids(llm.generate([np.array([5])], PARAMS, use_tqdm=False)) == [[5]]
    assert next(llm.stream(np.array(IDS[0]), PARAMS)).prompt_token_ids == IDS[0]


def test_nothing_and_one_are_lists_too() -> None:
    assert prompt_list(iter(())) == []
    assert prompt_list("a") == prompt_list({"prompt": "a"}) == ["a"]
    assert prompt_content({"prompt_token_ids": (1, 2)}) == [1, 2]


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        (b"Once", r"prompts must be a string, token ids, .*, got b'Once' \(bytes\); decode it first"),
        (["a", b"b"], r"prompts\[1\] must be a string, .*, got b'b' \(bytes\); decode it first"),
        (bytearray(b"x"), "bytearray"),
        ({"prompt": b"x"}, r"prompts\['prompt'\] must be a string, .* got b'x'"),
        (5, r"prompts must be a string, token ids, .*, got 5 \(int\)"),
        (None, "got None"),
        ([None], r"prompts\[0\] must be .*, got None"),
        ([1, 2, "x"], r"prompts\[2\] must be a token id, a whole number, got 'x' \(str\)"),
        ([[1, 2.5]], r"prompts\[0\]\[1\] must be a token id, a whole number, got 2.5 \(float\)"),
        (np.array([0.5]), r"prompts\[0\] must be .* got .*float64"),
    ],
)
def test_what_is_no_prompt_is_refused_by_name(llm: LLM, prompts: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message) as error:
        llm.generate(prompts, PARAMS, use_tqdm=False)
    assert len(str(error.value)) < 200


def test_an_id_that_no_vocabulary_has_is_named(llm: LLM) -> None:
    with pytest.raises(ValueError, match=r"prompts\[1\] is 4294967301"):
        llm.generate([1, 2**32 + 5], PARAMS, use_tqdm=False)


LONG = [{"role": "user", "content": "a " * 100}]
SHORT = [{"role": "user", "content": "a"}]


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        (["a", "b", ""], r"^prompts\[2\]: prompt is empty"),
        (["", ""], r"^prompts\[0\]: prompt is empty"),
        ([[1], [2], [-5]], r"^prompts\[2\]: prompt_token_ids\[0\] is -5"),
        ([[1], [-1], []], r"^prompts\[1\]: prompt_token_ids\[0\] is -1"),
        (["a", "b " * 100, ""], r"^prompts\[1\]: prompt has \d+ tokens"),
        ([""], "^prompt is empty"),
        ("", "^prompt is empty"),
    ],
)
def test_the_prompt_of_a_batch_that_is_refused_is_named(llm: LLM, prompts: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        llm.generate(prompts, PARAMS, use_tqdm=False)
    with pytest.raises(ValueError, match=message):
        llm.beam_search(prompts, BeamSearchParams(2, 2))
    assert llm.stats().num_running_reqs == 0


def test_the_conversation_of_a_batch_that_is_refused_is_named(llm: LLM) -> None:
    refused: list[tuple[Any, str]] = [
        ([SHORT, LONG], r"^messages\[1\]: prompt has \d+ tokens"),
        ([SHORT, [{"role": "user"}]], r"^messages\[1\]: chat_template: "),
        ([[{"role": "user"}], SHORT], r"^messages\[0\]: chat_template: "),
        ([SHORT, [{"role": "user", "content": "\ud800"}]], r"^messages\[1\] must be valid Unicode"),
        (LONG, "^prompt has"),
    ]
    for messages, message in refused:
        with pytest.raises(ValueError, match=message):
            llm.chat(messages, PARAMS, use_tqdm=False)


def test_what_is_wrong_with_several_is_said_of_the_first(llm: LLM) -> None:
    params = SamplingParams(allowed_token_ids=[10**6])
    with pytest.raises(ValueError, match=r"^prompts\[0\]: allowed_token_ids has token id 1000000"):
        llm.generate(["a", "b"], params, use_tqdm=False)
    with pytest.raises(ValueError, match=r"^prompts\[1\]: allowed_token_ids has token id 1000000"):
        llm.generate(["a", "b"], [PARAMS, params], use_tqdm=False)
    with pytest.raises(ValueError, match=r"^messages\[0\]: chat_template: "):
        llm.chat([SHORT, SHORT + SHORT], PARAMS, use_tqdm=False, chat_template="{{")


def test_what_goes_with_prompts_may_be_iterators_and_numpys(llm: LLM) -> None:
    outputs = llm.generate(
        iter(TEXTS),
        (SamplingParams(max_tokens=n + 1, ignore_eos=True) for n in range(3)),
        use_tqdm=False,
        priority=np.array([1, 2, 3]),
        deadline_ms=np.int64(60_000),
        user=iter("abc"),
    )
    assert [len(output.outputs[0].token_ids) for output in outputs] == [1, 2, 3]
    with pytest.raises(TypeError, match=r"deadline_ms must be int, got '5' \(str\)"):
        llm.generate("a", PARAMS, use_tqdm=False, deadline_ms="5")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"sampling_params must be SamplingParams, .* got \{"):
        llm.generate(["a"], [{"max_tokens": 1}], use_tqdm=False)  # type: ignore[list-item]


def test_conversations_come_in_any_iterable(llm: LLM) -> None:
    message = {"role": "user", "content": "Hello!"}
    expected = llm.apply_chat_template([message])
    for messages in ([message], (message,), iter([message]), [[message]], iter([iter([message])])):
        (output,) = llm.chat(messages, PARAMS, use_tqdm=False)
        assert output.prompt == expected
    assert next(llm.stream(iter([message]), PARAMS)).prompt == expected
    for wrong in ("Hello!", message, [["a"], "b"]):
        with pytest.raises(TypeError, match=r"messages(\[1\])? must be a list of messages"):
            conversation_list(wrong)


def test_a_prompt_is_cut_to_its_last_tokens(demo_model: Path) -> None:
    llm = LLM(demo_model, max_model_len=32)
    text = "Once upon a time there was a keeper of a lighthouse who could not sleep at night. " * 3
    whole = Tokenizer.from_file(str(demo_model / "tokenizer.json")).encode(text).ids
    for keep, expected in ((5, whole[-5:]), (31, whole[-31:]), (-1, whole[-31:])):
        params = SamplingParams(max_tokens=1, truncate_prompt_tokens=keep)
        for prompt in (text, whole):
            [output] = llm.generate([prompt], params, use_tqdm=False)
            assert output.prompt_token_ids == expected
            assert output.finished
    with pytest.raises(ValueError, match="truncate_prompt_tokens is 33; max_model_len is 32"):
        llm.generate(text, SamplingParams(truncate_prompt_tokens=33), use_tqdm=False)
    with pytest.raises(ValueError, match="truncate_prompt_tokens must be at least 1, or -1"):
        SamplingParams(truncate_prompt_tokens=0)


def test_special_tokens_have_no_spaces_between_them(demo_model: Path) -> None:
    """What vLLM leaves out when told to, a byte-level tokenizer never writes."""
    llm = LLM(demo_model, max_model_len=64)
    reference = Tokenizer.from_file(str(demo_model / "tokenizer.json"))
    special = [i for i in range(6) if reference.id_to_token(i) is not None]
    for spaces in (True, False):
        params = SamplingParams(
            temperature=0,
            max_tokens=6,
            ignore_eos=True,
            allowed_token_ids=special,
            skip_special_tokens=False,
            spaces_between_special_tokens=spaces,
        )
        [output] = llm.generate("hello", params, use_tqdm=False)
        ids = list(output.outputs[0].token_ids)
        assert output.outputs[0].text == reference.decode(ids, skip_special_tokens=False)
