"""``quire serve``."""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import os
from functools import partial
from typing import TYPE_CHECKING, Any, get_type_hints

from quire.argument_parser import FlexibleArgumentParser
from quire.model_directory import DEMO_MODEL, model_name
from quire.serve.config import ServeConfig, dump_serve_config

if TYPE_CHECKING:
    from quire.serve.tracing import RequestTracer

_HELP = {
    "host": "the address to listen at; 0.0.0.0 for all of this machine's",
    "port": "0: any that is free",
    "uds": "a socket in the file system, instead",
    "served_model_name": "what requests call the model: one name or several",
    "api_key": "what requests must bring; several are possible",
    "api_key_file": "a file with such keys, one in each line",
    "allowed_origins": "web pages that may call (CORS); * is any",
    "ssl_certfile": "for TLS, with --ssl-keyfile",
    "ssl_keyfile": "for TLS, with --ssl-certfile",
    "ssl_ca_certs": "of those who sign clients' certificates",
    "ssl_cert_reqs": "2: clients need a certificate; 1: one that they bring must be valid",
    "root_path": "the path that a proxy in front takes away",
    "max_body_bytes": "longer bodies are refused",
    "max_header_bytes": "longer headers are refused",
    "max_header_count": "more headers in one request are refused",
    "client_timeout": "seconds for a header, and a body, and that a client may read nothing; 0: any time",
    "max_concurrent_requests": "more answers under way are refused with 429; 0: no limit",
    "max_concurrent_requests_per_key": "the same of each API key",
    "shutdown_timeout": "seconds that unfinished answers have after SIGTERM",
    "reasoning_parser": "how the model writes reasoning, by vLLM's names",
    "tool_parser": "how the model writes tool calls, by vLLM's names",
    "chat_template": "Jinja, or a file that has it, instead of the model's own",
    "return_tokens_as_token_ids": 'log-probabilities name tokens "token_id:17"',
    "lora_modules": 'adapters to begin with, with --enable-lora: name=path, or {"name": "a", "path": "b"}',
    "lora_root": "the folder that adapters must lie in that requests load; without it anywhere",
    "page": "a page at / to talk to the model and to watch the engine",
    "enable_admin": "routes that change the engine",
    "vllm_metrics": "/metrics has vLLM's names, too",
    "log_level": "debug, info, warning or error",
    "log_file": "where the log goes, as JSON lines; without it to stderr",
    "log_requests": "a line in the log for each answer, without texts",
    "otlp_traces_endpoint": "spans of requests go there by OTLP: http://localhost:4318/v1/traces",
}


def add_serve_arguments(parser: FlexibleArgumentParser) -> None:
    """The fields of ServeConfig, and of EngineConfig, as flags, and the model as ``vllm serve`` has it."""
    parser.add_argument("model_tag", nargs="?", metavar="MODEL", help="the same as --model")
    group = parser.add_argument_group("server")
    types = get_type_hints(ServeConfig)
    for field in dataclasses.fields(ServeConfig):
        flags = ["--" + field.name.replace("_", "-")]
        if field.name == "tool_parser":
            flags.append("--tool-call-parser")  # vLLM's name
        kind = types[field.name]
        options: dict[str, Any] = {"help": _HELP[field.name], "default": None, "dest": field.name}
        if kind is bool:
            options["action"] = argparse.BooleanOptionalAction
        elif kind == tuple[str, ...]:
            options |= {"nargs": "+", "metavar": "TEXT"}
        else:
            options |= {"type": {int: int, float: float}.get(kind, str), "metavar": field.name.upper()}
        group.add_argument(*flags, **options)
    parser.defer_engine_config((), {name: partial(_read, name, kind) for name, kind in types.items()})


def serve_config(args: argparse.Namespace) -> ServeConfig:
    """What the flags, the environment (QUIRE_PORT for --port) and the file of ``--config`` say, the strongest
    of each.

    Raises ValueError, naming the source, the field, its value and what would do.
    """
    from quire.config import given_options, named_by_source

    given = given_options(args)
    values: dict[str, Any] = {
        name: tuple(one.value) if isinstance(one.value, list) else one.value for name, one in given.items()
    }
    try:
        return ServeConfig(**values)
    except ValueError as error:
        raise named_by_source(error, given) from None


def _read(name: str, kind: Any, text: str) -> Any:
    """A field's value as the environment has it."""
    if kind is bool:
        if text.lower() not in ("0", "1", "false", "true"):
            raise ValueError(f"{name} must be true or false, got '{text:.100}'")
        return text.lower() in ("1", "true")
    if kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            raise ValueError(f"{name} must be a number, got '{text:.100}'") from None
    if name == "lora_modules" and text.lstrip().startswith(("[", "{")):
        return _json_texts(name, text)
    return text.split(",") if kind == tuple[str, ...] else text


def _json_texts(name: str, text: str) -> list[str]:
    """An array of texts and objects, or one object; an object stays JSON."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{name} must be texts between commas, or JSON, got '{text:.100}': {error}"
        ) from None
    values = value if isinstance(value, list) else [value]
    return [one if isinstance(one, str) else json.dumps(one) for one in values]


def run_serve(args: argparse.Namespace) -> int:
    """Loads the model and serves it until SIGTERM or Ctrl-C."""
    _take_model_tag(args)
    config = serve_config(args)
    # What is wrong with these is said before a model is looked for, which may be a long download.
    config.api_keys()
    config.check_tls()
    config.check_parsers()
    config.template_text()
    from quire.config import dump_config, given_fields, make_engine_config

    if config.lora_modules:
        enable_lora = given_fields(args).get("enable_lora")
        config.check_lora_modules(enable_lora is not None and enable_lora.value, config.served_model_name)
    if args.dump_config:
        print(dump_config(make_engine_config(args, model=DEMO_MODEL)), end="")
        print(dump_serve_config(config), end="")
        return 0
    try:
        import fastapi  # noqa: F401
        import httptools  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise ValueError(f"{error.name} is not installed; pip install 'quire[serve]'") from None
    from quire._core import PrometheusMetrics
    from quire.serve.app import Server
    from quire.serve.log import configure_logging
    from quire.serve.server import bind, serve

    try:
        configure_logging(config.log_level, path=config.log_file, loggers=("uvicorn", "uvicorn.error"))
    except OSError as error:
        raise ValueError(f"log_file cannot be opened: {error}") from None
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    sockets = bind(config)
    name = (*config.served_model_name, model_name(make_engine_config(args, model=DEMO_MODEL).model))[0]
    tracer = _tracer(config.otlp_traces_endpoint, name)
    metrics = PrometheusMetrics(model_name=name, alias_vllm=config.vllm_metrics)
    engine_config = make_engine_config(args, model=DEMO_MODEL, metric_sink=metrics)
    return 0 if serve(Server.start(engine_config, config, metrics, tracer), sockets) else 1


def _take_model_tag(args: argparse.Namespace) -> None:
    if args.model_tag is None:
        return
    if args.model not in (None, args.model_tag):
        raise ValueError(f"MODEL '{args.model_tag}' and --model '{args.model}' are two models: give one")
    args.model = args.model_tag


def _tracer(endpoint: str | None, model_name: str) -> RequestTracer | None:
    if endpoint is None:
        return None
    from quire.serve.tracing import RequestTracer

    service_name = os.environ.get("OTEL_SERVICE_NAME") or "quire"
    try:
        return RequestTracer.otlp(endpoint, model_name=model_name, service_name=service_name)
    except ImportError as error:
        raise ValueError(f"otlp_traces_endpoint: {error}") from None
