"""The parser of the ``quire`` command, which takes options as vLLM's does."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NoReturn

# Where a parser leaves the names of the fields that it has flags for, its other options that the environment
# may give (of each how a text is read), and what it has read from a file: its path, and both kinds of values.
FLAGS = "_engine_config_flags"
OPTIONS = "_environment_options"
FILE = "_engine_config_file"


class FlexibleArgumentParser(argparse.ArgumentParser):
    """A parser that takes ``--max_model_len`` for ``--max-model-len``, as vLLM's does.

    The flags of the engine's configuration are added when it is first used: a command that does not need them
    does not wait for them.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._engine_config_exclude: Collection[str] | None = None
        self._deferred: Callable[[], None] | None = None

    def defer(self, add: Callable[[], None]) -> None:
        """Has ``add`` called before the parser is used: it adds the parser's arguments."""
        self._deferred = add

    def defer_engine_config(
        self, exclude: Collection[str], options: Mapping[str, Callable[[str], Any]] | None = None
    ) -> None:
        """Adds the engine's flags, but for these, before the parser is used.

        ``options`` are options of the parser's own, whose default is None, that come from the environment and
        the file as the engine's fields do: ``quire.config.given_options`` has them. Of each what reads a text
        of the environment; it raises ValueError.
        """
        self._engine_config_exclude = exclude
        self.set_defaults(**{OPTIONS: dict(options or {})})

    def _complete(self) -> None:
        deferred, self._deferred = self._deferred, None
        if deferred is not None:
            deferred()
        if self._engine_config_exclude is None:
            return
        exclude, self._engine_config_exclude = self._engine_config_exclude, None
        from quire.config import add_flags  # imported late: most commands need none

        add_flags(self, exclude)

    def format_help(self) -> str:
        self._complete()
        return super().format_help()

    def format_usage(self) -> str:
        self._complete()
        return super().format_usage()

    def error(self, message: str) -> NoReturn:
        """Ends the program with one line: a usage may be a page."""
        self.exit(2, f"{self.prog}: error: {message}; see {self.prog} --help\n")

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse has it; of an unknown option it says the nearest, or why vLLM's is not here."""
        parsed, unknown = self.parse_known_args(args, namespace)
        if unknown:
            option = next((one for one in unknown if one.startswith("--")), "")
            hint = self._hint(option.partition("=")[0], sys.argv[1:] if args is None else list(args))
            self.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
        return parsed

    def _hint(self, option: str, args: list[str]) -> str:
        from difflib import get_close_matches

        from quire.vllm_names import ENGINE_ARGS, Renamed

        made = ENGINE_ARGS.get(option.removeprefix("--").removeprefix("no-").replace("-", "_"))
        if made is not None and not isinstance(made, Renamed):
            why = re.sub(r"[,;:] (and )?leave it out.*", "", made.why)
            return f" (vLLM's; leave it out: {why})"
        near = get_close_matches(option, _known_options(self, args), 1)
        return f" (did you mean {near[0]}?)" if near else ""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse has it; ``--config`` of an engine is read before the rest. Raises ValueError for it."""
        self._complete()
        given = [_dashed(arg) for arg in _up_to_dashes(sys.argv[1:] if args is None else list(args))]
        given += (sys.argv[1:] if args is None else list(args))[len(given) :]
        if self.get_default(FLAGS) is not None:
            path = _config_path(given)
            if path is not None:
                from quire.config_file import read_config_file

                self.set_defaults(**{FILE: (path, read_config_file(path, self))})
        return super().parse_known_args(given, namespace)


def _known_options(parser: argparse.ArgumentParser, args: list[str]) -> set[str]:
    """Of a parser and of those of its commands that are in ``args``."""
    known = set(parser._option_string_actions)
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, command in action.choices.items():
                known |= _known_options(command, args) if name in args else set()
    return known


def _up_to_dashes(args: list[str]) -> list[str]:
    return args[: args.index("--")] if "--" in args else args


def _dashed(arg: str) -> str:
    """A long option with dashes for its underscores; anything else as it is."""
    if not re.match(r"--[A-Za-z]\w*(-\w+)*(=|$)", arg):
        return arg
    name, equals, value = arg.partition("=")
    return name.replace("_", "-") + equals + value


def _config_path(args: Sequence[str]) -> str | None:
    path = None
    for i, arg in enumerate(_up_to_dashes(list(args))):
        if arg == "--config" and i + 1 < len(args):
            path = args[i + 1]
        elif arg.startswith("--config="):
            path = arg.partition("=")[2]
    return path
