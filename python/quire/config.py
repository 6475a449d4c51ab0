"""The engine's configuration from flags, the environment and a file, by the table of its fields.

A flag goes before an environment variable, that before the file, and that before the default:

    --max-model-len 4096        QUIRE_MAX_MODEL_LEN=4096        max-model-len: 4096
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple, TypeVar

from quire import _core
from quire.argument_parser import FILE, FLAGS, OPTIONS
from quire.argument_parser import FlexibleArgumentParser as FlexibleArgumentParser
from quire.config_fields import (
    Field,
    engine_config_fields,
    environment_name,
    flag_name,
    kind_of,
    read_field,
    read_list,
)
from quire.config_file import read_config_file
from quire.model_directory import located_config


def add_engine_config_arguments(parser: argparse.ArgumentParser, *, exclude: Collection[str] = ()) -> None:
    """Adds a flag for each field of ``EngineConfig`` but those excluded, ``--config`` and ``--dump-config``.

    ``make_engine_config`` makes a configuration of what was parsed. Underscores for dashes, other options in
    the file of ``--config``, and flags that are made only when they are needed, are a
    ``FlexibleArgumentParser``'s.
    """
    if isinstance(parser, FlexibleArgumentParser):
        parser.defer_engine_config(exclude)
    else:
        add_flags(parser, exclude)


def add_flags(parser: argparse.ArgumentParser, exclude: Collection[str]) -> None:
    """What add_engine_config_arguments adds, at once."""
    group = parser.add_argument_group(
        "engine",
        "Each is also an environment variable, QUIRE_MAX_NUM_SEQS for --max-num-seqs, and a key of the file "
        "that --config names, max-num-seqs.",
    )
    group.add_argument("--config", metavar="FILE", help="a YAML file of options: flags' names without dashes")
    group.add_argument(
        "--dump-config",
        action="store_true",
        help="print the engine's configuration, as a file for --config, and do nothing else",
    )
    names = [name for name in engine_config_fields() if name not in exclude]
    for name in names:
        _add_flag(group, engine_config_fields()[name])
    if "plugins" in names:
        text = "one more of --plugins; may be repeated"
        group.add_argument("--plugin", dest="plugins", metavar="PATH", action=_AddAction, help=text)
    parser.set_defaults(**{FLAGS: names})


def _add_flag(group: Any, field: Field) -> None:
    name, kind = field["name"], kind_of(field)
    default = "" if field["default"] in (None, "", [], {}) else f" (default: {field['default']})"
    text = (field["doc"] + default).replace("%", "%%")
    options: dict[str, Any] = {"dest": name, "default": None, "help": text}
    if kind == "bool":
        group.add_argument(flag_name(name), action=argparse.BooleanOptionalAction, **options)
        return
    if kind.startswith("list"):
        options |= {"nargs": "+", "action": _ListAction}
    options["metavar"] = {"int": "N", "float": "X"}.get(kind, "JSON" if kind.startswith("dict") else "TEXT")
    if field["one_of"]:
        options["metavar"] = "{" + ",".join(field["one_of"].split()) + "}"
    group.add_argument(
        flag_name(name),
        type=_reader(name) if kind in ("int", "float") or kind.startswith("dict") else str,
        **options,
    )


def _reader(name: str) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        try:
            return read_field(name, text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return read


class _ListAction(argparse.Action):
    """Several texts, or one JSON array."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, _: object = None
    ) -> None:
        try:
            setattr(namespace, self.dest, read_list(self.dest, values))
        except ValueError as error:
            raise argparse.ArgumentError(self, str(error)) from None


class _AddAction(argparse.Action):
    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, value: Any, _: object = None
    ) -> None:
        setattr(namespace, self.dest, [*(getattr(namespace, self.dest) or []), value])


class Given(NamedTuple):
    """A value, and who gave it."""

    value: Any
    source: str  # "--max-model-len", "QUIRE_MAX_MODEL_LEN in the environment", "config.yaml"


def given_fields(
    args: argparse.Namespace | None = None, environ: Mapping[str, str] | None = None
) -> dict[str, Given]:
    """What flags, the environment (``os.environ`` unless given) and the file say of the engine, the strongest
    of each.

    Raises ValueError naming the source, the field, the value and what would do.
    """
    fields = engine_config_fields()
    return {name: one for name, one in _all_given(args, environ).items() if name in fields}


def given_options(args: argparse.Namespace, environ: Mapping[str, str] | None = None) -> dict[str, Given]:
    """The same of the parser's own options; see ``FlexibleArgumentParser.defer_engine_config``."""
    fields = engine_config_fields()
    return {name: one for name, one in _all_given(args, environ).items() if name not in fields}


def _all_given(args: argparse.Namespace | None, environ: Mapping[str, str] | None) -> dict[str, Given]:
    given: dict[str, Given] = {}
    values = vars(args) if args is not None else {}
    options = values.get(OPTIONS) or {}
    path = values.get("config")
    if path is not None:
        stored = values.get(FILE)
        from_file = stored[1] if stored and stored[0] == path else read_config_file(path, None)
        given |= {name: Given(value, path) for name, value in from_file.items()}
    given |= _from_environment(os.environ if environ is None else environ, options)
    for name in [*(values.get(FLAGS) or engine_config_fields()), *options]:
        if values.get(name) is not None:
            given[name] = Given(values[name], flag_name(name))
    return given


def _from_environment(
    environ: Mapping[str, str], options: Mapping[str, Callable[[str], Any]]
) -> dict[str, Given]:
    known = {environment_name(name): name for name in [*engine_config_fields(), *options]}
    given = {}
    for variable, text in environ.items():
        if not variable.startswith("QUIRE_") or text == "":
            continue
        source = f"{variable} in the environment"
        if variable not in known:
            _refuse_misspelt(variable, known)
            continue
        name = known[variable]
        if name in options and _is_of_kubernetes(text):
            continue
        try:
            value = options[name](text) if name in options else _field_of_environment(name, text)
        except ValueError as error:
            raise ValueError(f"{source}: {error}") from None
        if name == "plugins":  # names of entry points stand there too: quire.plugins
            value = [one for one in value if "/" in one]
            if not value:
                continue
        given[name] = Given(value, source)
    return given


def _field_of_environment(name: str, text: str) -> Any:
    if kind_of(engine_config_fields()[name]) == "bool" and text in ("0", "1"):
        text = "true" if text == "1" else "false"
    return read_field(name, text)


def _is_of_kubernetes(text: str) -> bool:
    """Whether Kubernetes means a service: of one that is called quire, every pod has QUIRE_PORT=tcp://..."""
    return re.match(r"(tcp|udp|sctp)://", text) is not None


def _refuse_misspelt(variable: str, known: Collection[str]) -> None:
    """Raises ValueError for what is all but a known name; other programs have variables of that prefix."""
    from difflib import get_close_matches

    short = {name.removeprefix("QUIRE_"): name for name in known}
    near = get_close_matches(variable.removeprefix("QUIRE_"), short, 1, cutoff=0.9)
    if near:
        raise ValueError(
            f"{variable} in the environment: no field has that name; did you mean {short[near[0]]}?"
        )


def make_engine_config(
    args: argparse.Namespace | None = None, *, environ: Mapping[str, str] | None = None, **defaults: Any
) -> _core.EngineConfig:
    """The configuration that flags, the environment and the file make; ``defaults`` stand below these.

    Raises ValueError, or TypeError for a value of another type, naming the source, the field, the value and
    what would do.
    """
    given = given_fields(args, environ)
    values = {**defaults, **{name: one.value for name, one in given.items()}}
    if "model" not in values:
        raise ValueError("model is missing; give --model, QUIRE_MODEL or the key model of --config's file")
    try:
        return located_config(values.pop("model"), values)
    except (ValueError, TypeError) as error:
        raise named_by_source(error, given) from None


ErrorT = TypeVar("ErrorT", bound=Exception)


def named_by_source(error: ErrorT, given: Mapping[str, Given]) -> ErrorT:
    """The error with who gave the field that it begins with, if somebody did."""
    match = re.match(r"\w+", str(error))
    source = given.get(match[0]) if match else None
    return error if source is None else type(error)(f"{source.source}: {error}")


def dump_config(config: _core.EngineConfig) -> str:
    """The whole configuration as a file for ``--config``: YAML, each value as JSON.

    What is secret is left out, and a comment says so.
    """
    lines = []
    for name, field in engine_config_fields().items():
        key = name.replace("_", "-")
        value = getattr(config, name)
        if field["is_secret"] and value != field["default"]:
            lines.append(f"# {key} is set, and not shown")
        elif isinstance(value, float) and math.isinf(value):
            lines.append(f"{key}: .inf")
        else:
            lines.append(f"{key}: {json.dumps(value, ensure_ascii=False)}")
    return "\n".join(lines) + "\n"
