"""The file of ``--config``: options by the names of their flags, without dashes."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

from quire.argument_parser import FLAGS, OPTIONS
from quire.config_fields import engine_config_fields, kind_of, read_field
from quire.values import describe, path_value


def read_config_file(path: str, parser: argparse.ArgumentParser | None) -> dict[str, Any]:
    """The fields in a file, and the options that the environment may give as well.

    What is another option of the parser becomes its default.
    """
    path = path_value("config", path)
    content = _load(path)
    if not isinstance(content, dict):
        raise ValueError(f"{path}: config must be a mapping of options to values, got {describe(content)}")
    fields = engine_config_fields()
    allowed = parser.get_default(FLAGS) if parser is not None else list(fields)
    options = {} if parser is None else _other_options(parser)
    values: dict[str, Any] = {}
    for key, value in content.items():
        name = str(key).replace("-", "_")
        if name in allowed or (name in fields and name not in options):
            if value is not None:
                values[name] = _value_in_file(path, name, value)
        elif name in options and parser is not None:
            if value is not None:
                dest, read = options[name].dest, _default_of(path, options[name], value)
                if dest in (parser.get_default(OPTIONS) or {}):
                    values[dest] = read
                else:
                    parser.set_defaults(**{dest: read})
        elif _asks_for_something(path, name, value):
            raise ValueError(
                f"{path}: '{key!s:.100}' is not an option; {_nearest(name, [*fields, *options])}"
            )
    return values


def _asks_for_something(path: str, name: str, value: Any) -> bool:
    """Of what is no option of ours: False for one of vLLM's that asks for nothing, ValueError for another."""
    from quire.vllm_names import find_name

    try:
        return find_name("EngineConfig", name, value) is not None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _load(path: str) -> Any:
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise ValueError(
            f"config: cannot read {path!r:.200}: {reason}; give a YAML file of options"
        ) from None
    if path.endswith(".json"):
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}: {error}") from None
    try:
        import yaml
    except ImportError:
        raise ValueError(
            f"config: reading {path!r:.200} takes PyYAML, which is not installed: pip install pyyaml, or "
            "give the same as JSON, in a file whose name ends in .json"
        ) from None
    try:
        return yaml.safe_load(text) or {}
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"{path}: {' '.join(str(error).split())}") from None


def _other_options(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    own = {*parser.get_default(FLAGS), "help", "config", "dump_config"}
    return {
        option.removeprefix("--").replace("-", "_"): action
        for action in parser._actions
        for option in action.option_strings
        if option.startswith("--") and action.dest not in own
    }


def _default_of(path: str, action: argparse.Action, value: Any) -> Any:
    """A value of the file as argparse would have made it of a text."""
    name = next(option for option in action.option_strings if option.startswith("--"))

    def read(one: Any) -> Any:
        made = one
        if action.type is not None:
            try:
                made = action.type(str(one))  # type: ignore[operator]
            except (ValueError, TypeError, argparse.ArgumentTypeError):
                kind = getattr(action.type, "__name__", "value")
                raise ValueError(f"{path}: {name} must be a valid {kind}, got {describe(one)}") from None
        elif not isinstance(one, (str, bool)):
            made = json.dumps(one, default=str) if isinstance(one, dict) else str(one)
        if action.choices is not None and made not in action.choices:
            choices = ", ".join(map(str, action.choices))
            raise ValueError(f"{path}: {name} must be one of {choices}, got {describe(one)}")
        return made

    if action.nargs == 0 or isinstance(action, argparse.BooleanOptionalAction):
        if not isinstance(value, bool):
            raise ValueError(f"{path}: {name} must be true or false, got {describe(value)}")
        return value
    if isinstance(value, list):
        if action.nargs is None:
            raise ValueError(f"{path}: {name} must be one value, got {describe(value)}")
        return [read(one) for one in value]
    return [read(value)] if action.nargs == "+" else read(value)


def _value_in_file(path: str, name: str, value: Any) -> Any:
    kind = kind_of(engine_config_fields()[name])
    try:
        if isinstance(value, str) and kind != "str":
            return read_field(name, value)
        if kind == "str" and isinstance(value, (int, float)) and not isinstance(value, bool):
            return str(value)
        if isinstance(value, list) and kind.startswith("list"):
            return read_field(name, json.dumps(value, default=str))
        return value
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _nearest(name: str, known: Sequence[str]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name, known, 1)
    return f"did you mean '{near[0].replace('_', '-')}'?" if near else "see --help"
