"""AsyncLLM: requests as asynchronous generators."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from quire import LLM, AsyncLLM, RequestOutput, RequestOutputKind, SamplingParams

T = TypeVar("T")
PROMPTS = ["Once upon a time", "The baker said", "A lighthouse is"]
MESSAGES = [{"role": "user", "content": "Who are you?"}]
LONG = SamplingParams(temperature=0, max_tokens=1500, ignore_eos=True, output_kind=RequestOutputKind.DELTA)


def greedy(kind: RequestOutputKind, max_tokens: int = 24) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, output_kind=kind)


@pytest.fixture(scope="module")
def llm() -> Iterator[AsyncLLM]:
    llm = AsyncLLM(num_threads=1)
    yield llm
    asyncio.run(llm.shutdown())


@pytest.fixture(scope="module")
def expected() -> list[RequestOutput]:
    return LLM(num_threads=1).generate(PROMPTS, greedy(RequestOutputKind.FINAL_ONLY), use_tqdm=False)


def run_soon(work: Coroutine[Any, Any, T]) -> T:
    """A minute is long enough for anything here."""
    return asyncio.run(asyncio.wait_for(work, 60))


async def collect(llm: AsyncLLM, prompt: str, params: SamplingParams) -> list[RequestOutput]:
    return [output async for output in llm.generate(prompt, params)]


async def idle(llm: AsyncLLM) -> None:
    """Returns when no request is left; fails when that takes long."""
    for _ in range(200):
        if llm.stats().num_running_reqs == 0:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("a request goes on that nobody wants")


@pytest.mark.parametrize("kind", list(RequestOutputKind), ids=lambda kind: kind.name)
def test_outputs_are_what_their_kind_says(
    llm: AsyncLLM, expected: list[RequestOutput], kind: RequestOutputKind
) -> None:
    async def run() -> None:
        answers = await asyncio.gather(*(collect(llm, prompt, greedy(kind)) for prompt in PROMPTS))
        for outputs, whole in zip(answers, expected, strict=True):
            assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]
            texts = [output.outputs[0].text for output in outputs]
            if kind == RequestOutputKind.DELTA:
                assert "".join(texts) == whole.outputs[0].text
            else:
                assert texts[-1] == whole.outputs[0].text
                assert all(whole.outputs[0].text.startswith(text) for text in texts)
            if kind == RequestOutputKind.FINAL_ONLY:
                assert len(outputs) == 1

    run_soon(run())


def test_a_conversation_is_answered_as_by_llm(llm: AsyncLLM) -> None:
    params = greedy(RequestOutputKind.FINAL_ONLY)

    async def run() -> str:
        return [output.outputs[0].text async for output in llm.chat(MESSAGES, params)][-1]

    assert run_soon(run()) == LLM(num_threads=1).chat(MESSAGES, params, use_tqdm=False)[0].outputs[0].text


def test_closing_the_generator_aborts(llm: AsyncLLM) -> None:
    async def run() -> None:
        stream = llm.generate(PROMPTS[0], LONG)
        await anext(stream)
        assert llm.stats().num_running_reqs == 1
        await stream.aclose()
        await idle(llm)

    run_soon(run())


def test_cancelling_who_awaits_aborts(llm: AsyncLLM) -> None:
    async def run() -> None:
        task = asyncio.create_task(collect(llm, PROMPTS[0], LONG))
        while llm.stats().num_running_reqs == 0:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await idle(llm)

    run_soon(run())


def test_aborting_by_name_ends_the_generator(llm: AsyncLLM) -> None:
    async def run() -> None:
        outputs = []
        async for output in llm.generate(PROMPTS[0], LONG, "mine"):
            outputs.append(output)
            await llm.abort(["mine", "not there"])
        assert outputs[-1].outputs[0].finish_reason == "abort"

    run_soon(run())


@pytest.mark.parametrize("wrong", [None, 5, b"mine", ["mine", None]])
def test_what_is_no_name_is_refused_and_nothing_aborted(llm: AsyncLLM, wrong: Any) -> None:
    async def run() -> None:
        stream = llm.generate(PROMPTS[0], LONG, "mine")
        await anext(stream)
        with pytest.raises(TypeError, match=r"request_id must be a string.*, got"):
            await llm.abort(wrong)
        assert (await anext(stream)).outputs[0].finish_reason is None
        await stream.aclose()
        await idle(llm)

    run_soon(run())


def test_the_loop_wakes_once_for_each_step(llm: AsyncLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    wakes = 0
    wake = llm.streams._wake

    def count() -> None:
        nonlocal wakes
        wakes += 1
        wake()

    monkeypatch.setattr(llm.streams, "_wake", count)

    async def run() -> int:
        before = llm.stats().num_steps
        params = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
        await asyncio.gather(*(collect(llm, PROMPTS[0], params) for _ in range(32)))
        return llm.stats().num_steps - before

    steps = run_soon(run())
    assert 0 < wakes <= steps + 2


def test_another_loop_may_follow_but_not_beside(llm: AsyncLLM) -> None:
    run_soon(collect(llm, PROMPTS[0], greedy(RequestOutputKind.DELTA)))

    async def run() -> None:
        stream = llm.generate(PROMPTS[0], LONG)
        await anext(stream)
        pending = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)

        def elsewhere() -> None:
            run_soon(collect(llm, PROMPTS[1], LONG))

        with pytest.raises(RuntimeError, match="another event loop"):
            llm.pause()
            await asyncio.sleep(0.05)  # what the last step brought has been taken
            while pending.done():
                pending = asyncio.ensure_future(anext(stream))
                await asyncio.sleep(0.01)
            try:
                await asyncio.get_running_loop().run_in_executor(None, elsewhere)
            finally:
                llm.resume()
        await pending
        await stream.aclose()
        await idle(llm)

    run_soon(run())


def test_a_bad_request_raises_and_nothing_is_queued(llm: AsyncLLM) -> None:
    async def run() -> None:
        with pytest.raises(ValueError, match="prompt"):
            await collect(llm, "", greedy(RequestOutputKind.DELTA))
        with pytest.raises(TypeError, match="sampling_params"):
            await collect(llm, "a", 3)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="did you mean 'priority'"):
            llm.generate("a", prioriti=1)  # type: ignore[call-arg]
        assert llm.stats().num_running_reqs == 0

    run_soon(run())


def test_shutdown_gives_what_is_unfinished_its_time_and_then_aborts_it() -> None:
    async def run() -> None:
        llm = AsyncLLM(num_threads=1)
        assert llm.is_healthy
        short = asyncio.create_task(collect(llm, PROMPTS[0], greedy(RequestOutputKind.DELTA, 4)))
        long = [asyncio.create_task(collect(llm, PROMPTS[0], LONG)) for _ in range(16)]  # seconds of work
        while llm.stats().num_running_reqs == 0:
            await asyncio.sleep(0.001)
        assert not await llm.shutdown(drain=0.5)
        assert (await short)[-1].outputs[0].finish_reason in ("stop", "length")
        for outputs in await asyncio.gather(*long):
            assert outputs[-1].outputs[0].finish_reason == "abort"
        with pytest.raises(MemoryError, match="the engine has been shut down; start another"):
            await collect(llm, PROMPTS[0], LONG)

    run_soon(run())


def test_the_loop_goes_on_while_an_engine_sleeps_wakes_and_changes(llm: AsyncLLM, demo_model: Path) -> None:
    """Each waits for a request, whose tokens come meanwhile."""
    params = greedy(RequestOutputKind.FINAL_ONLY)

    async def tokens_during(change: Coroutine[Any, Any, None]) -> int:
        """How many outputs of a request came while it was waited for."""
        stream = llm.generate(PROMPTS[0], LONG)
        await anext(stream)
        changing = asyncio.ensure_future(change)
        count = 0
        async for output in stream:
            count += not changing.done()
            if count == 20:
                await llm.abort(output.request_id)
        await changing
        return count

    async def run() -> None:
        before = await collect(llm, PROMPTS[0], params)
        for change in (
            llm.sleep(mode="wait"),
            llm.wake_up(),
            llm.update_weights(demo_model, mode="wait"),
        ):
            if llm.is_sleeping():
                await change
                assert not llm.is_sleeping()
            else:
                assert await tokens_during(change) >= 20
        assert await llm.reset_prefix_cache()
        after = await collect(llm, PROMPTS[0], params)
        assert after[-1].outputs[0].token_ids == before[-1].outputs[0].token_ids
        with pytest.raises(ValueError, match="level must be"):
            await llm.sleep(3)

    run_soon(run())
