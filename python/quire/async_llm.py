"""An engine in an event loop."""

from __future__ import annotations

import asyncio
import functools
import os
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from itertools import count
from typing import Any, TypeVar

from quire import _core
from quire._core import RequestOutput, SamplingParams
from quire.arguments import names_unknown
from quire.conversations import ChatFormats, prepare_conversations
from quire.engine_operations import EngineOperations
from quire.lora import LoRARequest
from quire.output_streams import OutputStreams
from quire.prompts import Message, Prompt, conversation_list, prompt_content
from quire.values import describe, sampling_params_value, seconds_value, text_value

T = TypeVar("T")


class AsyncLLM(EngineOperations[_core.Engine]):
    """``LLM`` for an event loop: requests are asynchronous generators.

    Takes what ``LLM`` takes, and computes on threads of its own; the event loop wakes once for each step.
    Requests belong to one event loop at a time; what the engine tells of itself may be asked from any thread.
    """

    _engine_class = _core.Engine

    def _start(self, config: _core.EngineConfig) -> None:
        super()._start(config)
        self._ids = count()
        self._is_shut_down = False
        self._chat_formats = ChatFormats(self._engine)
        self.streams = OutputStreams(self._engine)

    def __del__(self) -> None:
        streams = getattr(self, "streams", None)  # none in one whose model could not be loaded
        if streams is not None:
            streams.close()

    @property
    def config(self) -> _core.EngineConfig:
        return self._config

    @property
    def engine(self) -> _core.Engine:
        """The engine in C++, for what is built on it."""
        return self._engine

    @names_unknown
    def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        priority: int | None = None,
        deadline_ms: int = 0,
        queue_timeout_ms: int = 0,
        user: str = "",
        cache_salt: str = "",
        add_special_tokens: bool | None = None,
        lora_request: LoRARequest | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Yields what ``sampling_params.output_kind`` says, as it is generated: all so far (CUMULATIVE), what
        is new (DELTA), or one output at the end (FINAL_ONLY).

        Closing the generator, or cancelling the task that awaits it, aborts the request. A consumer that is
        slower than the engine gets fewer and longer outputs. ``request_id`` must be unique among unfinished
        requests; without it one is made up. The rest is as for ``LLM.generate``.

        Raises ValueError if the request cannot be run, and MemoryError if the queue is full, ``deadline_ms``
        cannot be met, or the engine has ended; nothing is queued then.
        """
        options = {
            "priority": priority,
            "deadline_ms": deadline_ms,
            "queue_timeout_ms": queue_timeout_ms,
            "user": user,
            "cache_salt": cache_salt,
            "add_special_tokens": add_special_tokens,
        }
        params = sampling_params_value(sampling_params, self.get_default_sampling_params)
        return self._run(prompt_content(prompt), params, request_id, options, lora_request)

    @names_unknown
    def chat(
        self,
        messages: Iterable[Message],
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        chat_template: str | None = None,
        chat_template_content_format: str = "auto",
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        tools: Iterable[Mapping[str, Any]] | None = None,
        tool_choice: str | Mapping[str, Any] | None = None,
        parallel_tool_calls: bool = True,
        tool_parser: str | None = None,
        reasoning_parser: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        priority: int | None = None,
        deadline_ms: int = 0,
        queue_timeout_ms: int = 0,
        user: str = "",
        cache_salt: str = "",
        add_special_tokens: bool | None = None,
        lora_request: LoRARequest | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Answers one conversation: ``generate`` with the arguments of ``LLM.chat``."""
        conversations = conversation_list(messages)
        if len(conversations) != 1:
            raise ValueError(f"messages must be one conversation, got {len(conversations)}")
        params = sampling_params_value(sampling_params, self.get_default_sampling_params)
        prompts, prepared = prepare_conversations(
            self._engine,
            self._chat_formats,
            conversations,
            params,
            self.get_default_sampling_params,
            chat_template=chat_template,
            chat_template_content_format=chat_template_content_format,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            tools=tools,
            tool_choice=tool_choice,
            parallel_tool_calls=parallel_tool_calls,
            tool_parser=tool_parser,
            reasoning_parser=reasoning_parser,
            chat_template_kwargs=chat_template_kwargs,
        )
        options = {
            "priority": priority,
            "deadline_ms": deadline_ms,
            "queue_timeout_ms": queue_timeout_ms,
            "user": user,
            "cache_salt": cache_salt,
            "add_special_tokens": bool(add_special_tokens),
        }
        return self._run(prompts[0], prepared[0], request_id, options, lora_request)

    async def _run(
        self,
        prompt: str | list[int],
        params: SamplingParams,
        request_id: str | None,
        options: dict[str, Any],
        lora_request: LoRARequest | None,
    ) -> AsyncGenerator[RequestOutput, None]:
        self._refuse_in_processor()
        if self._is_shut_down:
            raise MemoryError("the engine has been shut down; start another")
        if lora_request is not None:
            [options["lora_name"]] = await self._on_thread(super()._lora_names, lora_request, 1)
        name = f"async-{next(self._ids)}" if request_id is None else text_value("request_id", request_id)
        request = _core.EngineRequest(name, prompt, params, **options)
        key, queue = self.streams.open()
        self._engine.add_requests([request], queue, params.output_kind)
        finished = False
        try:
            while not finished:
                outputs = queue.take(0)
                if not outputs:
                    await self.streams.arrival(key)
                for output in outputs:
                    finished = output.finished
                    yield output
        finally:
            self.streams.forget(key)
            if not finished:
                self._engine.abort_request(name)

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """Ends requests: their generators give what there is, with finish_reason "abort", and end.

        Those that are not there are passed over. Waits for nothing, and may be awaited in any event loop.
        Raises TypeError, and ends none, for what is no name.
        """
        if isinstance(request_id, bytes) or not isinstance(request_id, Iterable):
            raise TypeError(f"request_id must be a string, or several, got {describe(request_id)}")
        given = [request_id] if isinstance(request_id, str) else request_id
        for name in [text_value("request_id", one) for one in given]:
            self._engine.abort_request(name)

    async def sleep(self, level: int = 1, mode: str = "refuse") -> None:  # type: ignore[override]
        """``LLM.sleep``, on another thread: the event loop goes on, and so do requests that are waited for.

        Cancelling it, or what follows here, ends the waiting and not the work.
        """
        await self._on_thread(super().sleep, level, mode)

    async def wake_up(self, tags: Iterable[str] | None = None) -> None:  # type: ignore[override]
        """``LLM.wake_up``, on another thread."""
        await self._on_thread(super().wake_up, tags)

    async def update_weights(  # type: ignore[override]
        self,
        weights: str | os.PathLike[str] | Mapping[str, Any] | Iterable[tuple[str, Any]],
        *,
        partial: bool = False,
        mode: str = "refuse",
    ) -> None:
        """``LLM.update_weights``, on another thread, which an iterable of ``weights`` is read on as well."""
        update = functools.partial(super().update_weights, weights, partial=partial, mode=mode)
        await self._on_thread(update)

    async def add_lora(self, lora_request: LoRARequest) -> bool:  # type: ignore[override]
        """``LLM.add_lora``, on another thread."""
        return await self._on_thread(super().add_lora, lora_request)

    async def pin_lora(self, lora: str | int) -> bool:  # type: ignore[override]
        """``LLM.pin_lora``, on another thread."""
        return await self._on_thread(super().pin_lora, lora)

    async def reset_prefix_cache(self) -> bool:  # type: ignore[override]
        """``LLM.reset_prefix_cache``, on another thread: it waits for a step."""
        return await self._on_thread(super().reset_prefix_cache)

    async def expert_loads(self) -> dict[str, list[int]]:  # type: ignore[override]
        """``LLM.expert_loads``, on another thread: it waits for the steps that run."""
        return await self._on_thread(super().expert_loads)

    @staticmethod
    async def _on_thread(work: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(None, work, *arguments)

    @property
    def is_healthy(self) -> bool:
        """Whether the engine lives, and its step does not hang; ``check_health`` says why not."""
        try:
            self.check_health()
        except RuntimeError:
            return False
        return True

    async def shutdown(self, drain: float | None = 0.0) -> bool:
        """Ends the engine, which accepts no request any more.

        Waits up to ``drain`` seconds for unfinished requests; None: for as long as they take. What is
        unfinished then ends with finish_reason "abort". Returns whether nothing was.
        """
        seconds = None if drain is None else seconds_value("drain", drain)
        drained = await self.drain(seconds)
        if not drained:
            self._engine.abort_all_requests()
            await self.drain(None)
        self._is_shut_down = True
        await asyncio.get_running_loop().run_in_executor(None, self._engine.shutdown)
        self.streams.close()
        return drained

    async def drain(self, timeout: float | None = None) -> bool:
        """Accepts no more requests and waits until all are finished. False after ``timeout`` seconds.

        ``resume`` accepts requests again.
        """
        loop = asyncio.get_running_loop()
        end = None if timeout is None else time.monotonic() + seconds_value("timeout", timeout)
        while True:
            left = 0.05 if end is None else min(max(end - time.monotonic(), 0.0), 0.05)
            if await loop.run_in_executor(None, self._engine.drain, int(left * 1000)):
                return True
            if end is not None and time.monotonic() >= end:
                return False
