"""Logits processors in Python, with vLLM's life cycle over NumPy arrays."""

from __future__ import annotations

import contextlib
import enum
import importlib
import traceback
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from quire._core import LogitsProcessorConfig, SamplingParams
from quire.values import describe

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Logits: TypeAlias = npt.NDArray[np.float32]

# A row, the request's parameters, its prompt, and its output, a list that grows as tokens are drawn.
AddedRequest: TypeAlias = "tuple[int, SamplingParams, list[int], list[int]]"


class MoveDirectionality(enum.Enum):
    """How a request changes its row."""

    UNIDIRECTIONAL = enum.auto()  # to an empty one
    SWAP = enum.auto()  # with the request there


@dataclass(frozen=True)
class BatchUpdate:
    """What has changed in a batch: removed, then added, then moved.

    ``removed`` holds rows that are empty now; a request that is added to another's row replaces that.
    ``moved`` holds (from, to, how). Afterwards rows 0 to batch_size - 1 are in use.
    """

    batch_size: int
    removed: Sequence[int]
    added: Sequence[AddedRequest]
    moved: Sequence[tuple[int, int, MoveDirectionality]]


class LogitsProcessor(ABC):
    """Changes logits before tokens are drawn from them; list the class in ``LLM(logits_processors=[...])``.

    An engine makes one for each of its ranks and calls it on a thread of its own, with the lock of Python.
    The batch is the requests that use it and get a token in the step. One that sits out a step (preempted, or
    in the middle of a long prompt) is removed, and added again with what it has generated. What
    ``update_state`` or ``apply`` raises ends the requests of the batch, and no others; after ``update_state``
    has raised, the processor is made anew.
    """

    # Names of ``SamplingParams.extra_args``: requests that have one of them use the processor, and others
    # cost nothing. Empty: every request uses it.
    extra_arg_names: ClassVar[Sequence[str]] = ()

    def __init__(self, config: LogitsProcessorConfig) -> None:  # noqa: B027  # may be left as it is
        """What it raises is raised by ``LLM``, as ValueError."""

    @classmethod  # noqa: B027  # this one, too
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """Raises ValueError for parameters that it cannot do with, which refuses the request."""

    def is_argmax_invariant(self) -> bool:
        """True if the likeliest token never changes: greedy requests are left out then. Asked once."""
        return False

    @abstractmethod
    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Before each ``apply``: what has changed since the last one, or None."""

    @abstractmethod
    def apply(self, logits: Logits) -> Logits | None:
        """Changes the logits, [batch_size, vocab_size], in place, or returns others of that shape.

        Minus infinity forbids a token. Bias, bans, grammars and penalties come after. On a CPU this is the
        memory of the model's logits if the rows of the batch lie at equal distances, as all rows of a step
        do. An array that is kept stays valid, and changes nothing later.
        """


class Host:
    """One processor of one rank: works out its batch from the rows of a step."""

    def __init__(self, processor_class: type[Any], config: LogitsProcessorConfig) -> None:
        self._class = processor_class
        self._config = config
        self._processor: Any = processor_class(config)
        self._rows: list[int] = []
        invariant = getattr(self._processor, "is_argmax_invariant", lambda: False)()
        if not isinstance(invariant, bool):
            raise TypeError(f"is_argmax_invariant must return a bool, got {describe(invariant)}")
        self.is_argmax_invariant = invariant

    def apply(self, logits: Logits, requests: list[tuple[int, tuple[Any, ...]]] | None) -> None:
        """``requests``: of each row a number that names it, and its parameters, prompt and output.

        None when they are those of the last call.
        """
        if self._processor is None:
            self._processor = self._class(self._config)
            self._rows = []
        try:
            self._processor.update_state(None if requests is None else self._update(requests))
        except BaseException:
            self._processor = None
            raise
        changed = self._processor.apply(logits)
        if changed is None or changed is logits:
            return
        shape = getattr(changed, "shape", None)
        if shape != logits.shape:
            got = describe(changed) if shape is None else f"an array of shape {shape}"
            raise TypeError(f"apply must return None or an array of shape {logits.shape}, got {got}")
        import numpy as np

        np.copyto(logits, changed, casting="same_kind")

    def _update(self, requests: list[tuple[int, tuple[Any, ...]]]) -> BatchUpdate | None:
        rows: list[int | None] = list(self._rows)
        wanted = [key for key, _ in requests]
        if rows == wanted:
            return None
        here = set(wanted)
        empty = [row for row, key in enumerate(self._rows) if key not in here]
        for row in empty:
            rows[row] = None
        known = set(self._rows)
        added: list[AddedRequest] = []
        for key, (params, prompt, output) in requests:
            if key in known:
                continue
            row = empty.pop(0) if empty else len(rows)
            rows[row : row + 1] = [key]
            added.append((row, params, prompt, output))
        place = {key: row for row, key in enumerate(rows) if key is not None}
        moved: list[tuple[int, int, MoveDirectionality]] = []
        for row, key in enumerate(wanted):
            other, source = rows[row], place[key]
            if source == row:
                continue
            how = MoveDirectionality.UNIDIRECTIONAL if other is None else MoveDirectionality.SWAP
            moved.append((source, row, how))
            rows[row], rows[source] = key, other
            if other is not None:
                place[other] = source
        self._rows = wanted
        return BatchUpdate(len(wanted), empty, added, moved)


def resolve(entries: object) -> list[str | tuple[str, Any, list[str], Any]]:
    """What the engine is told: names and paths of C++ processors, and of each class what it needs to know."""
    expected = (
        "a class with update_state and apply, 'module:Class', or the name or path of a processor in C++"
    )
    items = [entries] if isinstance(entries, (str, type)) or not isinstance(entries, Iterable) else entries
    found: list[str | tuple[str, Any, list[str], Any]] = []
    names = set()
    for i, item in enumerate(items):
        where = f"logits_processors[{i}]"
        entry: Any = item
        if isinstance(entry, str) and ":" in entry and "/" not in entry:
            entry = _imported(where, entry)
        if isinstance(entry, str):
            found.append(entry)
            continue
        if not isinstance(entry, type) or not all(
            callable(getattr(entry, name, None)) for name in ("update_state", "apply")
        ):
            raise TypeError(f"{where} must be {expected}, got {describe(entry)}")
        name = f"{entry.__module__}:{entry.__qualname__}"
        if name in names:
            raise ValueError(f"{where}: {name} is listed already")
        names.add(name)
        found.append((name, _host_maker(entry), _extra_arg_names(where, entry), _validator(entry)))
    return found


def describe_error(error: BaseException) -> str:
    """What was raised, and where in the caller's code."""
    text = type(error).__name__
    with contextlib.suppress(Exception):  # a class of the caller's that cannot be printed
        text = "".join(traceback.format_exception_only(error)).strip()
        text = text.removeprefix(f"{type(error).__module__}.")
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename != __file__]
    return f"{text} ({frames[-1].filename}:{frames[-1].lineno})" if frames else text


def _imported(where: str, path: str) -> object:
    module, _, qualified = path.partition(":")
    try:
        value: object = importlib.import_module(module)
        for name in qualified.split("."):
            value = getattr(value, name)
    except Exception as error:
        raise ValueError(f"{where}: cannot import '{path}': {error}") from error
    return value


def _host_maker(processor_class: type[Any]) -> Any:
    import numpy  # noqa: F401  # missing, it is missed here and not in the middle of a step

    return lambda config: Host(processor_class, config)


def _extra_arg_names(where: str, processor_class: type[Any]) -> list[str]:
    names = getattr(processor_class, "extra_arg_names", ())
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise TypeError(f"{where}: extra_arg_names must be a sequence of strings, got {describe(names)}")
    return list(names)


def _validator(processor_class: type[Any]) -> Any:
    validate = getattr(processor_class, "validate_params", None)
    inherited = LogitsProcessor.__dict__["validate_params"].__func__
    return None if validate is None or getattr(validate, "__func__", None) is inherited else validate
