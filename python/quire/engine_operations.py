"""What LLM, AsyncLLM and LLMEngine offer besides requests."""

from __future__ import annotations

import atexit
import os
import weakref
from collections.abc import Callable, Iterable, Mapping
from numbers import Integral
from typing import Any, Generic, TypeVar

from quire import _core
from quire.arguments import SignatureOf
from quire.lora import LoRAInfo, LoRARequest, lora_request_list, lora_request_value
from quire.model_directory import DEMO_MODEL, located_config
from quire.plugins import load_general_plugins
from quire.prompts import Message
from quire.values import describe, path_value, seconds_value, text_value, to_json

EngineT = TypeVar("EngineT", bound=_core.EngineBase)
SelfT = TypeVar("SelfT", bound="EngineOperations[Any]")


# The engines of this process, to be ended before it does.
_engines: weakref.WeakSet[EngineOperations[Any]] = weakref.WeakSet()


@atexit.register
def _end_engines() -> None:
    """Ends engines that other threads may be in, so that none computes while the process is taken down."""
    _core.hold_threads()
    for engine in list(_engines):
        engine._core_engine.shutdown()
    _core.let_go_of_processors()


def _unfinished(mode: str, *known: str) -> _core.UnfinishedRequests:
    if not isinstance(mode, str) or mode not in known:
        raise ValueError(f"mode must be one of {', '.join(known)}, got {describe(mode)}")
    return _core.UnfinishedRequests[mode.upper()]


# Keys of generation_config.json that are called otherwise in SamplingParams.
_SAMPLING_NAMES = {"max_new_tokens": "max_tokens"}


def check_generation_overrides(config: _core.EngineConfig) -> None:
    """Raises ValueError for a value that SamplingParams refuse: no request without any could run."""
    changed = config.override_generation_config
    if changed:
        _core.default_sampling_params(config)  # refuses keys that are not read, and values of another type
    for key, value in changed.items():
        name = _SAMPLING_NAMES.get(key, key)
        try:
            _core.SamplingParams(**{name: value})
        except ValueError as error:
            said = str(error).removeprefix(name)
            raise ValueError(f"override_generation_config.{key}{said}") from None


class EngineOperations(Generic[EngineT]):
    """Forwards to the C++ engine in ``_engine``."""

    __signature__ = SignatureOf(_core.EngineConfig, model=DEMO_MODEL)

    _engine_class: Callable[[_core.EngineConfig], EngineT]
    # Whether a call waits for the step that runs, whatever is called.
    _waits_for_steps = False

    def __init__(self, model: str | os.PathLike[str] = DEMO_MODEL, **engine_args: Any) -> None:
        """Loads the model. Raises ValueError, naming the field or file, if something is wrong with it."""
        self._start(located_config(model, engine_args))

    @classmethod
    def from_config(cls: type[SelfT], config: _core.EngineConfig) -> SelfT:
        """One of this configuration."""
        made = cls.__new__(cls)
        made._start(config)
        return made

    def _start(self, config: _core.EngineConfig) -> None:
        load_general_plugins()
        check_generation_overrides(config)
        self._core_engine = self._engine_class(config)
        self._config = config
        self._default_sampling_params: _core.SamplingParams | None = None
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

    def get_default_sampling_params(self) -> _core.SamplingParams:
        """What requests without parameters are sampled with: ``SamplingParams()``, changed by the model's
        generation_config.json (temperature, top_p, top_k, min_p, repetition_penalty, max_new_tokens).

        ``generation_config`` ("auto", "vllm" for none, or a path) and ``override_generation_config`` of the
        engine say otherwise. Raises ValueError, naming the file, if something is wrong with it.
        """
        if self._default_sampling_params is None:
            self._default_sampling_params = _core.default_sampling_params(self._config)
        return self._default_sampling_params.clone()

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

    def expert_loads(self) -> dict[str, list[int]]:
        """Of a mixture of experts: how many tokens each expert was chosen by since the start, by the name of
        its layer, in order; else empty. Of a prompt the last layer routes the last token, and others only in
        short steps. Raises MemoryError when the engine has ended."""
        self._refuse_in_processor()
        return dict(self._engine.expert_loads())

    @property
    def dead_error(self) -> str:
        """Why the engine has ended, which accepts no request any more; empty while it is alive."""
        return self._engine.dead_error

    @property
    def seconds_since_progress(self) -> float:
        """Seconds that the step that runs has taken so far; 0 while there is nothing to do."""
        return self._core_engine.seconds_since_progress

    def check_health(self, timeout: float = 5.0) -> None:
        """Raises RuntimeError if the engine has ended, or a step has taken more than ``timeout`` seconds.

        Never waits for a step. Slow steps (a long prompt on a CPU) want a longer timeout.
        """
        self._core_engine.check_health(int(min(max(seconds_value("timeout", timeout), 0.0), 1e9) * 1000))

    def sleep(self, level: int = 1, mode: str = "refuse") -> None:
        """Gives the memory of the weights, the KV cache and its prefixes back until ``wake_up``.

        At level 1 the weights are kept in host memory; on a CPU, where they are there already, they are read
        again from files that have not changed, and stay otherwise. At level 2 they are dropped: ``wake_up``
        reads them from the directory that they came from last, or ``update_weights`` brings others. Requests
        raise MemoryError meanwhile.

        ``mode`` says what becomes of unfinished requests: "refuse" (ValueError while there is one), "wait" or
        "abort".
        """
        self._refuse_in_processor()
        if not isinstance(level, int) or isinstance(level, bool):
            raise TypeError(f"level must be 1 or 2, got {describe(level)}")
        self._engine.sleep(min(max(level, -1), 9), _unfinished(mode, "refuse", "wait", "abort"))

    def wake_up(self, tags: Iterable[str] | None = None) -> None:
        """Takes the memory again, of the parts in ``tags`` ("weights", "kv_cache") or of all.

        Raises MemoryError if somebody else has taken it, and ValueError for weights that cannot be had again:
        the engine sleeps on then, and this may be tried again.
        """
        self._refuse_in_processor()
        if isinstance(tags, str) or not (tags is None or isinstance(tags, Iterable)):
            raise TypeError(f"tags must be a list of 'weights' and 'kv_cache', got {describe(tags)}")
        given = None if tags is None else [text_value("tags", tag) for tag in tags]
        if given != []:
            self._engine.wake_up(given or [])

    def is_sleeping(self) -> bool:
        """Whether weights or KV cache are still to come back."""
        return self._core_engine.is_sleeping

    def update_weights(
        self,
        weights: str | os.PathLike[str] | Mapping[str, Any] | Iterable[tuple[str, Any]],
        *,
        partial: bool = False,
        mode: str = "refuse",
    ) -> None:
        """Replaces the weights with those of a model directory, or with tensors by their names there.

        Tensors come as a mapping (``model.state_dict()``) or pairs: NumPy arrays, torch tensors, whatever has
        DLPack, in the CPU's memory, where they are read as they are. They are float32, float16 or bfloat16,
        whatever the engine computes in. All must be there unless ``partial``, which leaves the rest as it is.
        Everything is checked before anything changes; cached prefixes are forgotten.

        ``mode`` is as for ``sleep``; with "keep" requests go on with the new weights, which compute
        the keys and values of their tokens anew. Raises ValueError, naming it, for what does not fit.
        """
        self._refuse_in_processor()
        unfinished = _unfinished(mode, "refuse", "wait", "abort", "keep")
        if isinstance(weights, (str, os.PathLike)):
            self._engine.update_weights_from_directory(
                path_value("weights", weights), bool(partial), unfinished
            )
            return
        pairs = weights.items() if isinstance(weights, Mapping) else weights
        if not isinstance(pairs, Iterable):
            raise TypeError(f"weights must be a directory, a mapping or pairs, got {describe(weights)}")
        named = []
        for pair in pairs:
            if not isinstance(pair, tuple) or len(pair) != 2:
                raise TypeError(f"weights must hold pairs of a name and a tensor, got {describe(pair)}")
            named.append((text_value("weights", pair[0]), pair[1]))
        self._engine.update_weights_from_tensors(named, bool(partial), unfinished)

    def reset_prefix_cache(self) -> bool:
        """Forgets cached prefixes. Returns False, and does nothing, while a request is unfinished."""
        self._refuse_in_processor()
        return self._engine.reset_prefix_cache()

    def add_lora(self, lora_request: LoRARequest) -> bool:
        """Reads an adapter and checks all of it against the model; requests may name it from then on.

        Returns False, and does nothing, if it is there already; with its ``load_inplace`` it takes the place
        of the one that is there, or leaves it when it cannot: requests that compute with that one go on with
        it. With ``enable_lora``. At most ``max_cpu_loras`` are held in memory: the one used least recently
        goes, and is read again when a request wants it. Raises ValueError, naming the file, for an adapter
        that does not fit, and for a name or number that another one has; MemoryError if unfinished requests
        have, or ``pin_lora`` holds, all that are in memory, or there is no memory for it.
        """
        given = lora_request_value(lora_request)
        if given is None:
            raise TypeError("lora_request must be a LoRARequest, got None")
        path = str(given.lora_path)
        return self._engine.add_lora(given.lora_name, given.lora_int_id, path, given.load_inplace)

    def remove_lora(self, lora: str | int) -> bool:
        """Takes an adapter, by its name or its ``lora_int_id``, from those that requests may name.

        It goes when the last request that has it is over. False if there is none.
        """
        name = self._lora_name(lora)
        return name is not None and self._engine.remove_lora(name)

    def pin_lora(self, lora: str | int) -> bool:
        """Keeps an adapter in memory until it is removed. False if there is none."""
        name = self._lora_name(lora)
        return name is not None and self._engine.pin_lora(name)

    def list_loras(self) -> list[LoRAInfo]:
        """The adapters that requests may name, in the order they were added."""
        return [LoRAInfo(*info) for info in self._engine.list_loras()]

    def _lora_names(self, lora_request: object, num_prompts: int) -> list[str]:
        """What each request calls its adapter, which is there then; "" for none."""
        given = lora_request_list(lora_request, num_prompts)
        for adapter in dict.fromkeys(given):
            if adapter is not None:
                EngineOperations.add_lora(self, adapter)  # AsyncLLM has one of its own
        return ["" if adapter is None else adapter.lora_name for adapter in given]

    def _lora_name(self, lora: object) -> str | None:
        if isinstance(lora, Integral) and not isinstance(lora, bool):
            return next((info.lora_name for info in self.list_loras() if lora == info.lora_int_id != 0), None)
        if not isinstance(lora, str):
            raise TypeError(f"lora must be a name or a lora_int_id, got {describe(lora)}")
        return text_value("lora", lora)

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
