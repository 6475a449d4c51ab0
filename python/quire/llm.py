"""Batch inference from Python."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import count
from typing import Any

from quire import _core
from quire._core import RequestOutput, RequestOutputKind, SamplingParams
from quire.arguments import names_unknown
from quire.beam_search import BeamSearchOutput, BeamSearchParams, beam_search_output
from quire.conversations import ChatFormats, params_list, prepare_conversations
from quire.engine_operations import EngineOperations
from quire.lora import LoRARequest
from quire.prompts import (
    Message,
    Prompt,
    conversation_list,
    is_conversation,
    prompt_content,
    prompt_list,
)
from quire.values import describe, sampling_params_value, seconds_value, values_for_each

# How long a wait goes on before Python looks for signals, so that Ctrl-C returns at once.
_POLL_MS = 50


class LLM(EngineOperations[_core.Engine]):
    """A model and its engine, on threads of their own.

    ``model`` is a Hugging Face directory; without it, the bundled demo model. The keyword arguments are the
    fields of ``EngineConfig`` (dtype, max_model_len, max_num_seqs, ...); other arguments of vLLM's are taken
    where they change no result, else refused with the reason. Safe to use from several threads.
    All memory is returned when the object is deleted. It belongs to the process that made it: in a fork of
    that, every call raises RuntimeError.
    """

    _engine_class = _core.Engine

    def _start(self, config: _core.EngineConfig) -> None:
        super()._start(config)
        self._ids = count()
        self._chat_formats = ChatFormats(self._engine)

    @names_unknown
    def generate(
        self,
        prompts: Prompt | Iterable[Prompt],
        sampling_params: SamplingParams | Iterable[SamplingParams] | None = None,
        *,
        use_tqdm: bool | Callable[..., Any] = True,
        priority: int | Iterable[int] | None = None,
        deadline_ms: int | Iterable[int] = 0,
        queue_timeout_ms: int | Iterable[int] = 0,
        user: str | Iterable[str] = "",
        cache_salt: str | Iterable[str] = "",
        add_special_tokens: bool | Iterable[bool] | None = None,
        lora_request: LoRARequest | Iterable[LoRARequest | None] | None = None,
    ) -> list[RequestOutput]:
        """Generates a completion for each prompt, in order.

        A prompt is a string, token ids, or ``{"prompt": ...}`` / ``{"prompt_token_ids": ...}``; several come
        in any iterable: a list, a generator, an array, a column of a table. ``sampling_params`` is one for
        all or one for each; where there is none, ``get_default_sampling_params()``. One or one for each are
        ``priority``, ``deadline_ms`` (a request that is not finished by then ends with finish_reason
        "abort"; 0: no deadline), ``queue_timeout_ms`` (the same of one that has not begun by then), ``user``
        (whose share it counts to, with scheduling_policy="fair"), ``cache_salt`` (cached prefixes are shared
        only under the same one), ``add_special_tokens`` (False: no BOS and the like around a prompt that is
        text) and ``lora_request`` (an adapter that computes with the model, which is added, as by
        ``add_lora``, if it is not there yet). ``use_tqdm`` may be a class to show progress with, or a
        function that makes one.

        Raises ValueError if a prompt is empty or longer than ``max_model_len``, and MemoryError if the queue
        is full, a deadline cannot be met or the engine has ended; then none is run. A request that fails
        later raises nothing: its completion has finish_reason "error", and the reason in ``error``.
        """
        given = prompt_list(prompts)
        params = params_list(sampling_params, len(given), self.get_default_sampling_params)
        options = _options(
            len(given),
            priority=priority,
            deadline_ms=deadline_ms,
            queue_timeout_ms=queue_timeout_ms,
            user=user,
            cache_salt=cache_salt,
            add_special_tokens=add_special_tokens,
            lora_name=self._lora_names(lora_request, len(given)),
        )
        return self._run(given, params, use_tqdm, options)

    @names_unknown
    def chat(
        self,
        messages: Iterable[Message] | Iterable[Iterable[Message]],
        sampling_params: SamplingParams | Iterable[SamplingParams] | None = None,
        use_tqdm: bool | Callable[..., Any] = True,
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
        priority: int | Iterable[int] | None = None,
        deadline_ms: int | Iterable[int] = 0,
        queue_timeout_ms: int | Iterable[int] = 0,
        user: str | Iterable[str] = "",
        cache_salt: str | Iterable[str] = "",
        add_special_tokens: bool | Iterable[bool] | None = None,
        lora_request: LoRARequest | Iterable[LoRARequest | None] | None = None,
    ) -> list[RequestOutput]:
        """Answers one conversation, or each of several, rendered with a chat template.

        A message is ``{"role": "user", "content": "..."}``; a content may also be a list of parts like
        ``{"type": "text", "text": "..."}``. ``chat_template`` is Jinja, to use instead of the model's own;
        ``chat_template_kwargs`` are further variables for it (``{"enable_thinking": False}``).
        ``chat_template_content_format`` "auto" joins text parts, a line for each, if the template takes only
        strings; "string" always does, "openai" never. The prompt ends with the start of an answer, unless
        ``continue_final_message`` has the model go on with the last message, or ``add_generation_prompt`` is
        False.

        ``tools`` are described to the model as OpenAI's API has them. With ``tool_parser`` and
        ``reasoning_parser`` (how the model writes calls and reasoning; names as for ``ChatParser``, which
        reads the answers), ``tool_choice`` "required" makes the answer calls of them, at most one without
        ``parallel_tool_calls``, and ``{"type": "function", "function": {"name": ...}}`` one of that tool,
        with arguments that fit its schema; "auto" and "none" leave it to the model. The rest is as for
        ``generate``, but that the tokenizer adds no special tokens unless ``add_special_tokens`` is True: a
        rendered conversation has its own.
        """
        prompts, params = prepare_conversations(
            self._engine,
            self._chat_formats,
            conversation_list(messages),
            sampling_params,
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
        options = _options(
            len(prompts),
            priority=priority,
            deadline_ms=deadline_ms,
            queue_timeout_ms=queue_timeout_ms,
            user=user,
            cache_salt=cache_salt,
            add_special_tokens=False if add_special_tokens is None else add_special_tokens,
            lora_name=self._lora_names(lora_request, len(prompts)),
        )
        return self._run(prompts, params, use_tqdm, options, "messages")

    @names_unknown
    def stream(
        self,
        prompt: Prompt | Iterable[Message],
        sampling_params: SamplingParams | None = None,
        *,
        priority: int | None = None,
        deadline_ms: int = 0,
        queue_timeout_ms: int = 0,
        user: str = "",
        cache_salt: str = "",
        add_special_tokens: bool | None = None,
        lora_request: LoRARequest | None = None,
    ) -> Iterator[RequestOutput]:
        """Yields what is new (text and token ids) as it is generated. Closing the iterator aborts.

        ``prompt`` may also be a conversation, as for ``chat``. The rest is as for ``generate`` and ``chat``.
        """
        given = list(prompt) if isinstance(prompt, Iterator) else prompt
        is_chat = is_conversation(given)
        content = self.apply_chat_template(given) if is_conversation(given) else given
        params = sampling_params_value(sampling_params, self.get_default_sampling_params)
        options = {
            "priority": priority,
            "deadline_ms": deadline_ms,
            "queue_timeout_ms": queue_timeout_ms,
            "user": user,
            "cache_salt": cache_salt,
            "add_special_tokens": not is_chat if add_special_tokens is None else add_special_tokens,
            "lora_name": self._lora_names(lora_request, 1)[0],
        }
        queue = _core.OutputQueue()
        kind = RequestOutputKind.DELTA
        ids = self._submit([prompt_content(content)], [params], queue, kind, [options])
        finished = False
        try:
            while not finished:
                for output in queue.take(_POLL_MS):
                    finished = output.finished
                    yield output
        finally:
            if not finished:
                self._engine.abort_request(ids[0])

    @names_unknown
    def beam_search(
        self,
        prompts: Prompt | Iterable[Prompt],
        params: BeamSearchParams,
        *,
        use_tqdm: bool | Callable[..., Any] = False,
        lora_request: LoRARequest | Iterable[LoRARequest | None] | None = None,
    ) -> list[BeamSearchOutput]:
        """The ``params.beam_width`` best answers to each prompt, the best first, as transformers finds.

        The beams of a prompt share its keys and values; they run beside those of the others, and beside all
        other requests. Raises as ``generate`` does, and RuntimeError for a search that failed.
        """
        if not isinstance(params, BeamSearchParams):
            raise TypeError(f"params must be BeamSearchParams, got {describe(params)}")
        given = prompt_list(prompts)
        searches = [params.sampling_params()] * len(given)
        options = _options(len(given), lora_name=self._lora_names(lora_request, len(given)))
        outputs = self._run(given, searches, use_tqdm, options)
        found: list[BeamSearchOutput] = []
        for prompt, output in zip(given, outputs, strict=True):
            tokenizer = None if isinstance(prompt, str) else self._engine.tokenizer
            text = prompt if isinstance(prompt, str) else tokenizer.decode(prompt) if tokenizer else ""
            name = f"prompts[{len(found)}]" if len(given) > 1 else "a prompt"
            found.append(beam_search_output(output, text, params.length_penalty, name))
        return found

    def drain(self, timeout: float | None = None) -> bool:
        """Accepts no more requests and waits until all are finished. False after ``timeout`` seconds.

        ``resume`` accepts requests again.
        """
        self._refuse_in_processor()
        seconds = math.inf if timeout is None else seconds_value("timeout", timeout)
        end = time.monotonic() + max(seconds, 0.0)
        while True:
            left_ms = (end - time.monotonic()) * 1000
            if self._engine.drain(int(min(max(left_ms, 0), _POLL_MS))):
                return True
            if time.monotonic() >= end:
                return False

    def _submit(
        self,
        prompts: list[str | list[int]],
        params: list[SamplingParams],
        queue: _core.OutputQueue,
        output_kind: RequestOutputKind,
        options: list[dict[str, Any]],
        name: str = "prompts",
    ) -> list[str]:
        """Queues all of them, or none and raises, with the place in ``name`` of what is refused."""
        self._refuse_in_processor()
        ids = [str(next(self._ids)) for _ in prompts]
        requests = [
            _core.EngineRequest(ids[i], prompts[i], params[i], **options[i]) for i in range(len(prompts))
        ]
        self._engine.add_requests(requests, queue, output_kind, name)
        return ids

    def _run(
        self,
        prompts: list[str | list[int]],
        params: list[SamplingParams],
        use_tqdm: bool | Callable[..., Any],
        options: list[dict[str, Any]],
        name: str = "prompts",
    ) -> list[RequestOutput]:
        queue = _core.OutputQueue()
        ids = self._submit(prompts, params, queue, RequestOutputKind.FINAL_ONLY, options, name)
        unfinished = set(ids)
        outputs: dict[str, RequestOutput] = {}
        progress = _progress_bar(use_tqdm, len(ids)) if use_tqdm else None
        try:
            while unfinished:
                for output in queue.take(_POLL_MS):
                    outputs[output.request_id] = output
                    unfinished.discard(output.request_id)
                    if progress is not None:
                        progress.update(1)
        finally:
            for request_id in unfinished:
                self._engine.abort_request(request_id)
            if progress is not None:
                progress.close()
        return [outputs[request_id] for request_id in ids]


def _options(num_prompts: int, **given: Any) -> list[dict[str, Any]]:
    """Keyword arguments for each request, from values for all or one for each."""
    options: list[dict[str, Any]] = [{} for _ in range(num_prompts)]
    for name, value in given.items():
        if value is None:
            continue
        for option, entry in zip(options, values_for_each(name, value, num_prompts), strict=True):
            option[name] = entry
    return options


def _progress_bar(use_tqdm: bool | Callable[..., Any], total: int) -> Any:
    if callable(use_tqdm):
        return use_tqdm(total=total, desc="Processed prompts")
    from tqdm import tqdm  # imported late: `import quire` stays quick

    return tqdm(total=total, desc="Processed prompts", dynamic_ncols=True)
