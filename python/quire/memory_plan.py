"""``quire plan``: what a model would take, without its weights being loaded or the device being there."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Mapping
from typing import Any

from quire import _core
from quire.argument_parser import FlexibleArgumentParser

_UNITS = {"": 1, "B": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_BAR_CELLS = 32


def plan(
    model: str | os.PathLike[str],
    *,
    device_name: str | None = None,
    device_memory: int | None = None,
    **engine_args: Any,
) -> dict[str, Any]:
    """What an engine of ``LLM``'s arguments would take: a dict of JSON values, sizes in bytes.

    ``memory`` holds each rank's weights, activations, workspace, batch, adapters, graphs, exchange and
    kv_cache, ``total_bytes`` their sum and ``peak_bytes`` that of the host's ranks together;
    ``kv_bytes_per_token``, ``kv_bytes_per_block``, ``num_blocks``, ``max_concurrency`` (sequences of
    ``max_model_len`` at once) are the KV cache's. ``fits`` says whether the engine would start, ``problem``
    why not, and ``suggestions`` are changes (``field``, ``value``), each of which would help. ``text`` is all
    of it to be read.

    It is the engine's own plan. With ``device="cuda"`` it is for the device that is there, or for one of the
    kind that ``device_name`` says (``"A100"``, ``"H100"``, ``"H200"``, ``"L40S"``), with ``device_memory``
    bytes. Only the configuration and the headers of the weights are read; with ``load_format="dummy"``
    ``config.json`` alone. Raises ValueError or TypeError as ``LLM`` does for what is not about memory.
    """
    from quire.engine_args import EngineArgs
    from quire.plugins import load_general_plugins

    if device_name is not None:
        _check_device_name("device_name", device_name)
    load_general_plugins()
    return _core.plan_memory(
        EngineArgs(model, **engine_args).create_engine_config(), device_name or "", device_memory or 0
    )


def add_plan_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", metavar="MODEL", nargs="?", help="as --model")
    parser.add_argument("--device-name", help="plan for this: A100, H100, H200 or L40S")
    parser.add_argument("--device-memory", metavar="SIZE", help="of a device: 80GiB, say")
    parser.add_argument("--json", action="store_true", help="print a JSON object, sizes in bytes")
    if isinstance(parser, FlexibleArgumentParser):
        parser.defer_engine_config(exclude=["seed"])


def run_plan(args: argparse.Namespace) -> int:
    """Prints the plan. Returns 0, or 1 when the model does not fit."""
    from quire.config import dump_config, make_engine_config
    from quire.model_directory import DEMO_MODEL
    from quire.plugins import load_general_plugins

    if args.directory is not None:
        if args.model is not None:
            raise ValueError(f"MODEL {args.directory!r} and --model {args.model!r}: give one of them")
        args.model = args.directory
    # Both are read before the model is, which may have to be downloaded.
    if args.device_name is not None:
        _check_device_name("--device-name", args.device_name)
    memory = None if args.device_memory is None else read_bytes("--device-memory", args.device_memory)
    config = make_engine_config(args, model=DEMO_MODEL)
    if args.dump_config:
        print(dump_config(config), end="")
        return 0
    load_general_plugins()
    found = _core.plan_memory(config, args.device_name or "", memory or 0)
    if args.json:
        print(json.dumps({key: value for key, value in found.items() if key != "text"}, indent=2))
    else:
        print(found["text"] if not sys.stdout.isatty() else with_bars(found), end="")
    return 0 if found["fits"] else 1


def _check_device_name(name: str, value: str) -> None:
    if not value:
        raise ValueError(f"{name} {value!r} is no device; give A100, H100, H200 or L40S, or leave it out")


def read_bytes(name: str, text: str) -> int:
    """A size like ``80GiB``, ``80G`` or ``85899345920``. Raises ValueError naming ``name``."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?", text.strip(), re.IGNORECASE | re.ASCII)
    size = 0
    if match and (match[2] or not match[3]):
        unit = _UNITS[match[2].upper()]
        if match[3]:
            unit = 1024 ** "KMGT".find(match[2].upper()) * 1024
        size = int(float(match[1]) * unit)
    if not 0 < size < 1 << 60:
        raise ValueError(f"{name} {text!r:.50} is no size; give one like 80GiB")
    return size


def with_bars(found: Mapping[str, Any]) -> str:
    """The plan's text, its table's lines with bars."""
    most = max(found["memory"].values())
    sizes = iter([size for size in found["memory"].values() if size])
    lines = []
    for line in found["text"].splitlines():
        if line.startswith("  ") and line.endswith(" %") and not line.startswith("  in all"):
            cells = max(round(next(sizes) * _BAR_CELLS / most), 1)
            line += "  " + "\u2588" * cells
        lines.append(line)
    return "\n".join(lines) + "\n"
