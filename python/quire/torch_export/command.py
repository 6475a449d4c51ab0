"""The subcommand ``quire export``."""

from __future__ import annotations

import argparse


def add_export_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="SRC", help="a file of torch.save, a .pt2 archive, or a directory")
    parser.add_argument("target", metavar="DST", help="the directory to be made")
    parser.add_argument(
        "--dtype", choices=["float32", "float16", "bfloat16"], help="of floating-point weights"
    )
    parser.add_argument("--model-config", metavar="PATH", help="the config.json, or its directory")
    parser.add_argument(
        "--tokenizer", metavar="DIR", help="where the tokenizer's files are, if not beside SRC"
    )
    parser.add_argument("--max-shard-size", metavar="SIZE", default="5GB", help="of a file (default: 5GB)")
    parser.add_argument("--overwrite", action="store_true", help="replace DST")
    parser.add_argument("--dry-run", action="store_true", help="print what would be written")
    parser.add_argument(
        "--no-check", action="store_true", help="do not compare a .pt2's logits with the result's"
    )
    packed = parser.add_argument_group("packed weights", "A form that is mapped, for one kind of device.")
    packed.add_argument(
        "--packed", action="store_true", help="write weights as they lie in an engine's memory"
    )
    packed.add_argument("--device", default="auto", help="that they are for (default: auto)")
    packed.add_argument(
        "--tensor-parallel-size", type=int, default=1, metavar="N", help="a file for each rank"
    )
    packed.add_argument(
        "--plugin", action="append", default=[], metavar="PATH", help="a library with its architecture"
    )


def run_export(args: argparse.Namespace) -> int:
    from quire.memory_plan import read_bytes

    if args.packed:
        return _pack(args)
    for flag, value, default in [
        ("--device", args.device, "auto"),
        ("--tensor-parallel-size", args.tensor_parallel_size, 1),
        ("--plugin", args.plugin, []),
    ]:
        if value != default:
            raise ValueError(f"{flag} {value} is for packed weights; add --packed")
    from quire.torch_export.exporter import export

    written = export(
        args.source,
        args.target,
        config=args.model_config,
        tokenizer=args.tokenizer,
        dtype=args.dtype,
        max_shard_size=read_bytes("--max-shard-size", args.max_shard_size),
        overwrite=args.overwrite,
        check=not args.no_check,
        dry_run=args.dry_run,
    )
    if not args.dry_run:
        print(f"wrote {written}")
    return 0


def _pack(args: argparse.Namespace) -> int:
    from quire.packing import pack_weights

    for flag in ("model_config", "overwrite", "dry_run", "no_check"):
        if getattr(args, flag):
            raise ValueError(f"--{flag.replace('_', '-')} does not go with --packed")
    files = pack_weights(
        args.source,
        args.target,
        device=args.device,
        dtype=args.dtype,
        tensor_parallel_size=args.tensor_parallel_size,
        tokenizer=args.tokenizer,
        plugins=args.plugin,
        skip_tokenizer_init=True,
    )
    for file in files:
        print(f"wrote {file}")
    return 0
