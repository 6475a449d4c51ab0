"""What the flags of ``quire bench`` say, read."""

from __future__ import annotations

import argparse
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any

from quire.bench.arguments import fields_of, model_of, tokenizer_directory_of
from quire.bench.measures import GOODPUT_METRICS, METRICS
from quire.bench.targets import TargetConfig
from quire.bench.tokens import TokenSource
from quire.bench.workloads import WorkloadOptions
from quire.model_directory import resolve_model


def percentile_list(text: str) -> list[float]:
    """Raises ValueError for anything but numbers from 0 to 100, with commas."""
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = [-1.0]
    if not all(0 <= value <= 100 for value in values):
        raise ValueError(f"metric_percentiles must be numbers from 0 to 100, as in 50,90,99; got '{text}'")
    return values


def metric_list(text: str) -> list[str]:
    """Names with commas. Raises ValueError for one that is no metric."""
    names = text.split(",")
    for name in names:
        if name not in METRICS:
            raise ValueError(f"percentile_metrics must be of {','.join(METRICS)}; got '{name}'")
    return names


def goodput_limits(texts: Sequence[str]) -> dict[str, float]:
    """Milliseconds by metric of "ttft:200" and the like. Raises ValueError for anything else."""
    limits = {}
    for text in texts:
        name, _, value = text.partition(":")
        try:
            limits[name] = float(value)
        except ValueError:
            limits[name] = -1.0
        if name not in GOODPUT_METRICS or not limits[name] >= 0:
            raise ValueError(
                f"goodput wants NAME:MILLISECONDS with a name of {', '.join(GOODPUT_METRICS)}, got '{text}'"
            )
    return limits


def is_json(text: str) -> bool:
    """Whether an answer is JSON, by json.loads."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def workload_of(args: argparse.Namespace, *, text: bool = False) -> tuple[WorkloadOptions, TokenSource]:
    """What the flags say of the requests, and whose tokens they are made of."""
    if text:
        args.prompt_form = "text"
    options: WorkloadOptions = fields_of(args, WorkloadOptions)
    if args.tokenizer is None:
        return options, TokenSource(tokenizer_directory_of(args))
    try:
        return options, TokenSource(resolve_model(args.tokenizer, files="tokenizer", field="tokenizer"))
    except ValueError as error:
        raise ValueError(f"--tokenizer: {error}") from None


def sampling_fields(args: argparse.Namespace) -> dict[str, Any]:
    """What each request says of sampling."""
    ignore_eos = args.dataset_name != "json" if args.ignore_eos is None else args.ignore_eos
    # Not every server knows the field.
    return {"temperature": args.temperature, **({"ignore_eos": True} if ignore_eos else {})}


def target_config(args: argparse.Namespace) -> TargetConfig:
    """Of the flags. Asks a server for its model's name where none is given, waiting for it where told to."""
    headers = {}
    for text in args.header:
        name, equals, value = text.partition("=")
        if not equals or not _is_header_name(name) or any(c in value for c in "\r\n"):
            raise ValueError(f"header wants NAME=VALUE, as in X-Team=blue; got {text!r}")
        headers[name] = value
    key = args.api_key or os.environ.get("OPENAI_API_KEY", "")
    if key and args.target == "openai":
        headers["Authorization"] = f"Bearer {key}"
    if args.target == "openai" and not args.endpoint.endswith("/completions"):
        raise ValueError(
            "endpoint must be /v1/completions or /v1/chat/completions, behind any prefix; "
            f"got '{args.endpoint}'"
        )
    url = _url(args)
    name = args.served_model_name
    if args.target == "openai" and (name is None or args.ready_check_timeout_sec > 0):
        served = _wait_for_model(url, headers, args.ready_check_timeout_sec)
        name = name or served
    elif args.target == "triton":
        name = name or "quire"
    return TargetConfig(
        kind=args.target,
        url=url,
        endpoint=args.endpoint if args.target == "openai" else "",
        model=name or model_of(args),
        headers=headers,
        sampling=sampling_fields(args),
        extra_body=args.extra_body,
        keep_text=args.save_detailed or args.dataset_name == "json",
        timeout_s=args.request_timeout,
    )


def _url(args: argparse.Namespace) -> str:
    is_triton = args.target == "triton"
    if args.base_url is not None:
        if args.host is not None or args.port is not None:
            raise ValueError("base_url and --host, --port exclude each other; leave one out")
        return str(args.base_url)
    port = args.port if args.port is not None else 8001 if is_triton else 8000
    if not 1 <= port <= 65535:
        raise ValueError(f"port must be from 1 to 65535, got {port}")
    host = args.host or "127.0.0.1"
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return address if is_triton else f"http://{address}"


def _is_header_name(text: str) -> bool:
    """Whether it can be the name of a header."""
    return text.isascii() and bool(text) and all(c.isalnum() or c in "-_." for c in text)


def _wait_for_model(url: str, headers: Mapping[str, str], timeout_s: float) -> str:
    """The first model that a server has."""
    end = time.monotonic() + timeout_s
    while True:
        try:
            request = urllib.request.Request(f"{url.rstrip('/')}/v1/models", headers=dict(headers))
            with urllib.request.urlopen(request, timeout=10) as response:
                return str(json.load(response)["data"][0]["id"])
        except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
            refused = isinstance(error, urllib.error.HTTPError) and error.code in (401, 403)
            if time.monotonic() >= end or refused:
                raise ValueError(
                    f"base_url {url} does not tell its models: {error}; is the server up? "
                    "(--ready-check-timeout-sec waits for it, --served-model-name needs no answer)"
                ) from None
            time.sleep(0.05)
