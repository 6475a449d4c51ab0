"""``quire bench``."""

from __future__ import annotations

import argparse

from quire.argument_parser import FlexibleArgumentParser
from quire.model_directory import DEMO_MODEL


def add_bench_arguments(parser: FlexibleArgumentParser) -> None:
    """The subcommands, which are made when the parser is used: other commands do not wait for them."""

    def add() -> None:
        from quire.bench.arguments import add_commands

        add_commands(parser)

    parser.defer(add)


def run_bench(args: argparse.Namespace) -> int:
    """Measures, or compares results. Returns the exit status; raises ValueError for what cannot be."""
    if args.compare is not None:
        from quire.bench.compare import run_compare

        return run_compare(args)
    if args.bench is None:
        raise ValueError("say what to measure: quire bench serve, throughput, latency or startup; see --help")
    if args.dump_config:
        from quire.config import dump_config, make_engine_config

        print(dump_config(make_engine_config(args, model=DEMO_MODEL)), end="")
        return 0
    if args.bench == "serve":
        from quire.bench.serve import run_serve_bench

        return run_serve_bench(args)
    if args.bench == "startup":
        from quire.bench.startup import run_startup

        return run_startup(args)
    from quire.bench.offline import run_latency, run_throughput

    return run_throughput(args) if args.bench == "throughput" else run_latency(args)
