"""An engine's arguments under vLLM's names, to be changed until a configuration is made of them."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from quire import _core
from quire.arguments import SignatureOf, unknown_argument
from quire.config import add_engine_config_arguments, given_fields
from quire.config_fields import engine_config_fields
from quire.model_directory import DEMO_MODEL, located_config
from quire.vllm_names import find_name


class EngineArgs:
    """A dataclass of ``EngineConfig``'s fields; ``EngineArgs(...)`` takes what ``LLM(...)`` takes.

    None is a field's default. Values are checked by ``create_engine_config``.
    """

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    __signature__ = SignatureOf(_core.EngineConfig, model=DEMO_MODEL)

    def __init__(self, model: Any = DEMO_MODEL, **engine_args: Any) -> None:
        """Raises TypeError for a name that is not known, ValueError for one of vLLM's that is refused."""
        values = {"model": model}
        for name, value in engine_args.items():
            ours = name if name in _FIELDS else find_name("EngineConfig", name, value)
            if ours is None:
                continue
            if ours not in _FIELDS:
                raise TypeError(unknown_argument(type(self).__name__, name, tuple(_FIELDS)))
            values[ours] = value
        for name, (_, default) in _FIELDS.items():
            value = values.get(name)
            setattr(self, name, _copy(default) if value is None else value)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in _FIELDS:
            raise AttributeError(unknown_argument(type(self).__name__, name, tuple(_FIELDS)))
        super().__setattr__(name, value)

    def create_engine_config(self, *_: Any, **__: Any) -> _core.EngineConfig:
        """The configuration, checked. What vLLM's takes, where the engine runs, is not looked at.

        Raises ValueError, or TypeError for a value of another type, naming the field and what would do.
        """
        values = {
            name: getattr(self, name)
            for name, (_, default) in _FIELDS.items()
            if name != "model" and getattr(self, name) != default
        }
        return located_config(self.model, values)

    @staticmethod
    def add_cli_args(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
        """Adds a flag for each field, ``--config`` and ``--dump-config``. Returns the parser.

        Underscores for dashes are taken by a ``quire.config.FlexibleArgumentParser``.
        """
        add_engine_config_arguments(parser)
        return parser

    @classmethod
    def from_cli_args(cls, args: argparse.Namespace) -> EngineArgs:
        """Of what a parser with these flags has read, of the environment and of the file of ``--config``."""
        return cls(**{"model": DEMO_MODEL, **{name: one.value for name, one in given_fields(args).items()}})


def _copy(default: Any) -> Any:
    return default.copy() if isinstance(default, (list, dict)) else default


def _dataclass_field(name: str, default: Any) -> Any:
    shown = not engine_config_fields().get(name, {}).get("is_secret", False)
    if isinstance(default, (list, dict)):
        return field(default_factory=default.copy, repr=shown)
    return field(default=default, repr=shown)


# Types, as they are written, and defaults.
_FIELDS: dict[str, tuple[str, Any]] = {
    name: (described["type"], described["default"]) for name, described in engine_config_fields().items()
}
_FIELDS["model"] = ("str", DEMO_MODEL)
_FIELDS["kv_arena"] = ("KVArena | None", None)

EngineArgs.__annotations__ = {name: kind for name, (kind, _) in _FIELDS.items()}
for _name, (_, _default) in _FIELDS.items():
    setattr(EngineArgs, _name, _dataclass_field(_name, _default))
dataclass(init=False)(EngineArgs)


class AsyncEngineArgs(EngineArgs):
    """The same: one configuration serves every kind of engine."""
