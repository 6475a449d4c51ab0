"""``quire simulate``: how a fleet would serve a workload, by the real scheduler and a model of step costs."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

Report = Mapping[str, Any]

_ENGINE_INTEGERS = {
    "max_model_len": "longest sequence (2048)",
    "max_num_seqs": "requests running at once (64)",
    "max_num_batched_tokens": "tokens a step (2048)",
    "block_size": "tokens a KV block (16)",
    "num_gpu_blocks_override": "KV blocks of an engine, block 0 included (4096)",
    "long_prefill_token_threshold": "prompt tokens of one request a step; 0: no limit",
    "max_num_partial_prefills": "requests in the middle of their prompt; 0: no limit",
    "max_long_partial_prefills": "of those, long ones; 0: no limit",
    "max_queued_requests": "refuse more than this many unfinished requests an engine; 0: no limit",
}
_ENGINE_FLAGS = {
    "async_scheduling": "schedule a step while the one before it runs",
    "enable_prefix_caching": "on unless negated",
    "enable_chunked_prefill": "on unless negated",
    "scheduler_reserve_full_isl": "start a request only when its whole prompt fits; on unless negated",
}
_WORKLOAD: dict[str, tuple[type, str]] = {
    "num_requests": (int, "how many (1000)"),
    "rate": (float, "requests a second for the whole fleet, Poisson; 0: all at once (0)"),
    "prompt_median": (float, "of log-normal prompt lengths (120)"),
    "prompt_sigma": (float, "their spread (1.2): ShareGPT-like, mean 216"),
    "prompt_min": (int, "shorter ones are made this long (4)"),
    "prompt_max": (int, "longer ones are cut off (1024)"),
    "output_median": (float, "of log-normal output lengths (140)"),
    "output_sigma": (float, "their spread (0.9): ShareGPT-like, mean 204"),
    "output_min": (int, "shorter ones are made this long (1)"),
    "output_max": (int, "longer ones are cut off (1024)"),
    "prefix_share": (float, "part of the requests that begin with a shared prefix (0)"),
    "num_prefixes": (int, "shared prefixes, all equally likely (16)"),
    "prefix_len": (int, "tokens of each, before the prompt's own (256)"),
}
_SPELLED_OTHERWISE = {"num_requests": "requests"}


def simulate(options: Mapping[str, Any]) -> Report:
    """Runs a simulation. ``quire/simulator.h`` documents the options and the report.

    Raises ValueError naming the option, or the file, line and field.
    """
    from quire import _core
    from quire.values import to_json

    return cast(Report, json.loads(_core.simulate(to_json("options", dict(options)))))


def add_simulate_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument(
        "--json", metavar="OUT", help="write the whole report to a file; '-': print it instead"
    )
    parser.add_argument("--plot", metavar="OUT", help="draw it: OUT.html, or OUT.png (needs matplotlib)")
    parser.add_argument("--seed", type=int, metavar="N", help="same seed, same report (0)")

    fleet = parser.add_argument_group("the fleet")
    fleet.add_argument("--engines", type=int, dest="num_engines", metavar="N", help="how many (1)")
    fleet.add_argument(
        "--router", metavar="NAME", help="round_robin (the default), least_loaded or prefix_aware"
    )
    fleet.add_argument(
        "--max-load-factor",
        type=float,
        help="prefix_aware passes over engines above this times the mean (1.25)",
    )
    fleet.add_argument(
        "--num-threads",
        type=int,
        metavar="N",
        help="of this simulation (round_robin only), or of --calibrate; 0: all cores",
    )

    cost = parser.add_argument_group("what a step costs")
    cost.add_argument("--calibration", metavar="FILE", help="measured steps, as --calibrate writes them")
    cost.add_argument(
        "--calibrate",
        nargs=2,
        metavar=("MODEL_DIR", "OUT"),
        help="measure steps of a model here, and do nothing else",
    )
    cost.add_argument(
        "--host-seconds-per-step", type=float, help="between steps, unless async_scheduling (0)"
    )

    workload = parser.add_argument_group(
        "the workload", "A file of JSON lines (quire/simulator.h), or one that is made up:"
    )
    workload.add_argument(
        "--workload", metavar="FILE", help="arrival, prompt_len, output_len ..., or Mooncake's"
    )
    for name, (kind, text) in _WORKLOAD.items():
        workload.add_argument(
            _flag(_SPELLED_OTHERWISE.get(name, name)), type=kind, dest=name, metavar="N", help=text
        )

    engine = parser.add_argument_group("each engine")
    for name, text in _ENGINE_INTEGERS.items():
        engine.add_argument(_flag(name), type=int, metavar="N", help=text)
    for name, text in _ENGINE_FLAGS.items():
        engine.add_argument(_flag(name), action=argparse.BooleanOptionalAction, default=None, help=text)
    engine.add_argument("--scheduling-policy", metavar="NAME", help="fcfs, priority, cache_aware or fair")
    engine.add_argument(
        "--watermark", type=float, metavar="X", help="part of the blocks kept free when others run (0)"
    )


def run_simulate(args: argparse.Namespace) -> int:
    """The command. Raises ValueError for options that do not fit together."""
    if args.calibrate:
        from quire.calibrate import calibrate

        model, out = args.calibrate
        calibrate(model, Path(out), args.num_threads or 0)
        return 0
    options = _options(args)
    if args.plot:
        from quire.simulation_plots import check_plot_format

        check_plot_format(Path(args.plot))  # before minutes of simulation
    begin = time.perf_counter()
    report = simulate(options)
    seconds = time.perf_counter() - begin
    if args.json == "-":
        print(json.dumps(report))
    else:
        from quire.simulation_report import format_report

        print(format_report(report, seconds))
        if args.json:
            Path(args.json).write_text(json.dumps(report) + "\n")
    if args.plot:
        from quire.simulation_plots import plot

        plot(report, Path(args.plot))
    return 0


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _options(args: argparse.Namespace) -> dict[str, Any]:
    given = {name: value for name, value in vars(args).items() if value is not None}
    top = (
        "num_engines",
        "router",
        "max_load_factor",
        "num_threads",
        "calibration",
        "host_seconds_per_step",
        "seed",
    )
    engine = (*_ENGINE_INTEGERS, *_ENGINE_FLAGS, "scheduling_policy", "watermark")
    options: dict[str, Any] = {name: given[name] for name in top if name in given}
    options["engine"] = {name: given[name] for name in engine if name in given}
    made_up = {name: given[name] for name in _WORKLOAD if name in given}
    if "workload" in given and made_up:
        name = next(iter(made_up))
        raise ValueError(
            f"--workload and {_flag(_SPELLED_OTHERWISE.get(name, name))} exclude each other: "
            "a file says how many requests there are, when they come and how long they are"
        )
    options["workload"] = given.get("workload", made_up)
    return options
