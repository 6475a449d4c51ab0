"""What LLM and LLMEngine offer besides requests."""

from __future__ import annotations

import atexit
import os
import weakref
from collections.abc import Iterable, Mapping
from typing import Any, Generic, TypeVar

from quire import _core
from quire.prompts import Message
from quire.values import describe, path_value, text_value, to_json

EngineT = TypeVar("EngineT", bound=_core.EngineBase)


# The engines of this process, to be ended before it does.
_engines: weakref.WeakSet[EngineOperations[Any]] = weakref.WeakSet()


@atexit.register
def _end_engines() -> None:
    """Ends engines that other threads may be in, so that none computes while the process is taken down."""
    _core.hold_threads()
    for engine in list(_engines):
        engine._core_engine.shutdown()
    _core.let_go_of_processors()


class EngineOperations(Generic[EngineT]):
    """Forwards to the C++ engine in ``_engine``."""

    # Whether a call waits for the step that runs, whatever is called.
    _waits_for_steps = False

    def __init__(self, engine: EngineT, config: _core.EngineConfig) -> None:
        self._core_engine = engine
        self._config = config
        _engines.add(self)

    @property
    def _engine(self) -> EngineT:
        if self._waits_for_steps:
            self._refuse_in_processor()
        return self._core_engine

    def _refuse_in_processor(self) -> None:
        """Raises RuntimeError in a logits processor of this engine, which would wait for itself."""
        if self._config.is_in_processor():
            raise RuntimeError("a logits processor must not call the engine that it is part of")

    @property
    def model(self) -> _core.ModelDescription:
        """Architecture, dtype, vocab_size, max_model_len, eos_token_ids."""
        return self._engine.model

    def get_tokenizer(self) -> _core.Tokenizer:
        """The model's tokenizer. Raises ValueError if there is none, with ``skip_tokenizer_init``."""
        tokenizer = self._engine.tokenizer
        if tokenizer is None:
            raise ValueError("there is no tokenizer: skip_tokenizer_init is set")
        return tokenizer

    def apply_chat_template(
        self, messages: Iterable[Message], chat_template: str | None = None, **template_args: Any
    ) -> str:
        """Renders a conversation as text, with ``chat_template`` (Jinja) or else the model's own.

        ``template_args`` go to the template, but for ``add_generation_prompt``, ``continue_final_message``
        and ``chat_template_content_format``; see ``LLM.chat``. Raises ValueError if there is no template.
        """
        if isinstance(messages, (str, Mapping)) or not isinstance(messages, Iterable):
            raise TypeError(
                "messages must be a list of messages like {'role': 'user', 'content': ...}, got "
                + describe(messages)
            )
        return self._engine.apply_chat_template(
            to_json("messages", list(messages)),
            to_json("template arguments", template_args),
            text_value("chat_template", chat_template or ""),
        )

    def stats(self) -> _core.EngineStats:
        """Counters since the start: steps, tokens, preemptions, prefix hits, free blocks."""
        return self._engine.stats()

    @property
    def dead_error(self) -> str:
        """Why the engine has ended, which accepts no request any more; empty while it is alive."""
        return self._engine.dead_error

    def reset_prefix_cache(self) -> bool:
        """Forgets cached prefixes. Returns False, and does nothing, while a request is unfinished."""
        self._refuse_in_processor()
        return self._engine.reset_prefix_cache()

    def pause(self, mode: _core.PauseMode = _core.PauseMode.KEEP) -> None:
        """Stops computing (KEEP), or stops beginning requests (WAIT). Requests are accepted and wait."""
        if not isinstance(mode, _core.PauseMode):
            raise TypeError(f"mode must be PauseMode.KEEP or PauseMode.WAIT, got {describe(mode)}")
        self._engine.pause(mode)

    def resume(self) -> None:
        """Goes on after ``pause`` or ``drain``."""
        self._engine.resume()

    def take_kv_events(self) -> list[_core.KVCacheEvent]:
        """What happened to cached prefixes since the last call; with ``enable_kv_cache_events``."""
        return self._engine.take_kv_events()

    def dump_flight_recorder(self, path: str | os.PathLike[str]) -> None:
        """Writes what the scheduler was told and decided lately, for ``quire replay`` and ``quire trace``.

        Raises ValueError if there is no recorder (``flight_recorder_bytes=0``) or the file cannot be written.
        """
        self._engine.dump_flight_recorder(path_value("path", path))
