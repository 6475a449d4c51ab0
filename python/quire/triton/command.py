"""The options of ``quire triton``, and what it does."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from quire.model_directory import DEMO_MODEL, locate_model


def add_triton_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    what = parser.add_argument_group("what is served")
    what.add_argument(
        "--model", metavar="DIR", help=f"a Hugging Face directory; default: '{DEMO_MODEL}', the bundled model"
    )
    what.add_argument("--name", help="the model's name in the server (quire)")
    what.add_argument(
        "--set",
        action="append",
        metavar="NAME=VALUE",
        help="a parameter of the model, such as max_model_len=512; may be repeated",
    )
    what.add_argument(
        "--plugin",
        action="append",
        metavar="PATH",
        help="a library of models beside Quire's own; may be repeated",
    )
    what.add_argument(
        "--sync",
        action="store_true",
        help="also load NAME_sync, for HTTP infer and gRPC unary calls: a second engine",
    )
    what.add_argument(
        "--write",
        metavar="DIR",
        type=Path,
        help="write the model repository there, and start nothing",
    )
    what.add_argument(
        "--repository", metavar="DIR", type=Path, help="serve all models of this repository instead"
    )

    where = parser.add_argument_group("where", "0 is a free port.")
    where.add_argument("--host", default="127.0.0.1", help="the address to listen on (127.0.0.1)")
    where.add_argument("--http-port", type=int, default=8000, metavar="N", help="(8000)")
    where.add_argument("--grpc-port", type=int, default=8001, metavar="N", help="(8001)")
    where.add_argument("--metrics-port", type=int, default=8002, metavar="N", help="(8002)")

    how = parser.add_argument_group("how")
    how.add_argument(
        "--server",
        metavar="PATH",
        help="tritonserver; default: an installed one, else one downloaded from PyPI",
    )
    how.add_argument(
        "--server-arg",
        action="append",
        default=[],
        metavar="ARG",
        help="passed on to tritonserver, as in --server-arg=--log-verbose=1; may be repeated",
    )


def run_triton(args: argparse.Namespace) -> int:
    """The command. Returns the server's exit status; raises ValueError for options that do not fit."""
    from quire.triton import launcher, repository, server  # urllib and the like: other commands need none

    parameters = _parameters(args.set or [])
    if args.plugin is not None:
        if "plugins" in parameters:
            raise ValueError("--set plugins and --plugin exclude each other: give one of them")
        # Of the server relative ones would be beside its files.
        parameters["plugins"] = json.dumps([os.path.abspath(path) for path in args.plugin])
    if args.repository is not None:
        for option in ("model", "name", "set", "plugin", "write"):
            if getattr(args, option) is not None:
                raise ValueError(
                    f"--repository and --{option} exclude each other: its models say what they are"
                )
        if not args.repository.is_dir():
            raise ValueError(f"repository: no directory '{args.repository}'")
    wanted, name = DEMO_MODEL if args.model is None else args.model, args.name or "quire"
    if args.write is not None:
        model, parameters = locate_model(wanted, parameters)
        names = repository.write_repository(args.write, model, name=name, parameters=parameters)
        print(f"wrote {' and '.join(names)} to {args.write}")
        return 0

    # Before a model is looked for, which may be a long download.
    backends = launcher.backend_directory()
    program = server.find_server(args.server)
    launcher.check_ports(args.http_port, args.grpc_port, args.metrics_port)
    model, parameters = locate_model(wanted, parameters)
    with ExitStack() as stack:
        extra = list(args.server_arg)
        directory = args.repository
        if directory is None:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="quire-triton-")))
            names = repository.write_repository(directory, model, name=name, parameters=parameters)
            loaded = names if args.sync else names[:1]
            extra = ["--model-control-mode=explicit", *(f"--load-model={each}" for each in loaded), *extra]
        ports = launcher.choose_ports(args.host, args.http_port, args.grpc_port, args.metrics_port)
        host = launcher.url_host(args.host)
        url = f"http://{host}:{ports.http}"

        def say_ready() -> None:
            _print_examples(
                launcher.served_models(url), url, f"{host}:{ports.grpc}", f"{host}:{ports.metrics}"
            )

        command = launcher.server_command(program, directory, backends, ports, args.host)
        return launcher.serve([*command, *extra], url, say_ready)


def _parameters(settings: Sequence[str]) -> dict[str, str]:
    parameters = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or not name:
            raise ValueError(f"--set wants NAME=VALUE, such as max_model_len=512, got '{setting}'")
        if name == "model":
            raise ValueError("--set model: give the directory with --model")
        parameters[name] = value
    return parameters


def _print_examples(models: Sequence[str], url: str, grpc: str, metrics: str) -> None:
    print(f"\nready: {', '.join(models) or 'no model'}")
    if models:
        print(_EXAMPLES.format(url=url, grpc=grpc, model=models[0]))
    print(f"metrics: http://{metrics}/metrics; Ctrl-C stops the server", flush=True)


_EXAMPLES = """
curl {url}/v2/models/{model}/generate \\
  -d '{{"text_input": "Once upon a time", "max_tokens": 40, "temperature": 0}}'

curl -N {url}/v2/models/{model}/generate_stream \\
  -d '{{"text_input": "Once upon a time", "stream": true, "max_tokens": 40, "temperature": 0}}'

python - <<'END'   # pip install 'tritonclient[grpc]'
import queue
import numpy as np
import tritonclient.grpc as grpc

answers = queue.Queue()
text = grpc.InferInput("text_input", [1], "BYTES")
text.set_data_from_numpy(np.array(["Once upon a time"], dtype=object))
stream = grpc.InferInput("stream", [1], "BOOL")
stream.set_data_from_numpy(np.array([True]))
with grpc.InferenceServerClient("{grpc}") as client:
    client.start_stream(lambda result, error: answers.put((result, error)))
    client.async_stream_infer("{model}", [text, stream], parameters={{"max_tokens": 40}})
    while True:
        result, error = answers.get()
        if error:
            raise error
        print(result.as_numpy("text_output")[0].decode(), end="", flush=True)
        if result.get_response().parameters["triton_final_response"].bool_param:
            break
    print()
END
"""
