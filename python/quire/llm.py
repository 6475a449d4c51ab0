"""Batch inference from Python."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

from quire import _core
from quire._core import RequestOutput, RequestOutputKind, SamplingParams
from quire.model_directory import DEMO_MODEL, resolve_model
from quire.prompts import Message, Prompt, is_conversation, prompt_content, prompt_list

# How long a wait goes on before Python looks for signals, so that Ctrl-C returns at once.
_POLL_MS = 50


class LLM:
    """A model and its engine, on threads of their own.

    ``model`` is a Hugging Face directory; without it, the bundled demo model. The keyword arguments are the
    fields of ``EngineConfig`` (dtype, max_model_len, max_num_seqs, ...). Safe to use from several threads.
    All memory is returned when the object is deleted.
    """

    def __init__(self, model: str | os.PathLike[str] = DEMO_MODEL, **engine_args: Any) -> None:
        """Loads the model. Raises ValueError, naming the field or file, if something is wrong with it."""
        self._engine = _core.Engine(_core.EngineConfig(resolve_model(model), **engine_args))
        self._ids = count()

    @property
    def model(self) -> _core.ModelDescription:
        """Architecture, dtype, vocab_size, max_model_len, eos_token_ids."""
        return self._engine.model

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        priority: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """Generates a completion for each prompt, in order.

        A prompt is a string, a list of token ids, or ``{"prompt": ...}`` / ``{"prompt_token_ids": ...}``.
        ``sampling_params`` is one for all or one for each.

        Raises ValueError if a prompt is empty or longer than ``max_model_len``; then none is run.
        """
        return self._run(prompt_list(prompts), sampling_params, use_tqdm, priority, is_chat=False)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        **template_args: Any,
    ) -> list[RequestOutput]:
        """Answers one conversation, or each of several, rendered with the model's chat template.

        A message is ``{"role": "user", "content": "..."}``. ``template_args`` go to the template
        (``tools``, ``add_generation_prompt``, ...).
        """
        conversations = [messages] if is_conversation(messages) else messages  # type: ignore[arg-type]
        prompts: list[str | list[int]] = [
            self.apply_chat_template(conversation, **template_args)  # type: ignore[arg-type]
            for conversation in conversations
        ]
        return self._run(prompts, sampling_params, use_tqdm, None, is_chat=True)

    def stream(
        self,
        prompt: Prompt | Sequence[Message],
        sampling_params: SamplingParams | None = None,
    ) -> Iterator[RequestOutput]:
        """Yields what is new (text and token ids) as it is generated. Closing the iterator aborts.

        ``prompt`` may also be a conversation, as for ``chat``.
        """
        is_chat = is_conversation(prompt)
        content = self.apply_chat_template(prompt) if is_conversation(prompt) else prompt
        params = (sampling_params or SamplingParams()).copy()
        params.output_kind = RequestOutputKind.DELTA
        queue = _core.OutputQueue()
        ids = self._submit([prompt_content(content)], [params], queue, None, is_chat)  # type: ignore[arg-type]
        finished = False
        try:
            while not finished:
                for output in queue.take(_POLL_MS):
                    finished = output.finished
                    yield output
        finally:
            if not finished:
                self._engine.abort_request(ids[0])

    def apply_chat_template(self, messages: Sequence[Message], **template_args: Any) -> str:
        """Renders a conversation as text. Raises ValueError if the model has no chat template."""
        return self._engine.apply_chat_template(
            json.dumps(list(messages), ensure_ascii=False),
            json.dumps(template_args, ensure_ascii=False),
        )

    def stats(self) -> _core.EngineStats:
        """Counters since the start: steps, tokens, preemptions, prefix hits, free blocks."""
        return self._engine.stats()

    def reset_prefix_cache(self) -> bool:
        """Forgets cached prefixes. Returns False, and does nothing, while a request is unfinished."""
        return self._engine.reset_prefix_cache()

    def _submit(
        self,
        prompts: list[str | list[int]],
        params: list[SamplingParams],
        queue: _core.OutputQueue,
        priority: Sequence[int] | None,
        is_chat: bool,
    ) -> list[str]:
        ids = [str(next(self._ids)) for _ in prompts]
        requests = [
            _core.EngineRequest(
                ids[i],
                prompts[i],
                params[i],
                priority=priority[i] if priority else 0,
                # A rendered chat has its own special tokens.
                add_special_tokens=not is_chat,
            )
            for i in range(len(prompts))
        ]
        self._engine.add_requests(requests, queue)
        return ids

    def _run(
        self,
        prompts: list[str | list[int]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        use_tqdm: bool,
        priority: Sequence[int] | None,
        is_chat: bool,
    ) -> list[RequestOutput]:
        if sampling_params is None or isinstance(sampling_params, SamplingParams):
            given = [sampling_params or SamplingParams()] * len(prompts)
        else:
            given = list(sampling_params)
        for name, length in (
            ("sampling_params", len(given)),
            ("priority", len(priority or prompts)),
        ):
            if length != len(prompts):
                raise ValueError(f"{name} has {length} entries for {len(prompts)} prompts")
        params = [p.copy() for p in given]
        for p in params:
            p.output_kind = RequestOutputKind.FINAL_ONLY
        queue = _core.OutputQueue()
        ids = self._submit(prompts, params, queue, priority, is_chat)
        unfinished = set(ids)
        outputs: dict[str, RequestOutput] = {}
        progress = _progress_bar(len(ids)) if use_tqdm else None
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


def _progress_bar(total: int) -> Any:
    from tqdm import tqdm  # imported late: `import quire` stays quick

    return tqdm(total=total, desc="Processed prompts", dynamic_ncols=True)
