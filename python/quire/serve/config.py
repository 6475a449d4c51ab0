"""What the server is told at start, beside the engine's configuration."""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quire.lora import LoRARequest


@dataclass(frozen=True)
class ServeConfig:
    """Of each field its meaning; the flags of ``quire serve`` are these names with dashes."""

    host: str = "127.0.0.1"
    port: int = 8000  # 0: any that is free, which the log names
    uds: str | None = None  # a socket in the file system instead
    served_model_name: tuple[str, ...] = ()  # empty: the last part of the model's path
    # A request must bring one of these as "Authorization: Bearer KEY" (or "x-api-key"); empty: none is asked
    # for. The file has one in each line.
    api_key: tuple[str, ...] = ()
    api_key_file: str | None = None
    allowed_origins: tuple[str, ...] = ()  # of web pages that may call, for CORS; "*" is any
    ssl_certfile: str | None = None
    ssl_keyfile: str | None = None
    ssl_ca_certs: str | None = None  # of those who sign clients' certificates
    # Of clients, 0: they need no certificate, 1: one that they bring must be valid, 2: they need one.
    ssl_cert_reqs: int = 0
    root_path: str = ""  # the path that a proxy in front takes away
    max_body_bytes: int = 32 << 20
    max_header_bytes: int = 64 << 10  # of a request line and its headers, refused with 431 beyond
    max_header_count: int = 256
    # Seconds that a client has to send a header, and a body, and that it may read nothing of an answer that
    # waits for it. Its connection ends then. 0: any time.
    client_timeout: float = 60.0
    max_concurrent_requests: int = 0  # answers under way, refused with 429 beyond; 0: no limit
    max_concurrent_requests_per_key: int = 0
    shutdown_timeout: float = 30.0  # seconds that unfinished answers have after SIGTERM
    reasoning_parser: str = ""
    tool_parser: str = ""
    chat_template: str = ""  # Jinja, or the path of a file that has it
    return_tokens_as_token_ids: bool = False
    # Adapters to begin with, each "name=path" or vLLM's JSON, {"name": ..., "path": ...}.
    lora_modules: tuple[str, ...] = ()
    lora_root: str = ""  # adapters that requests load must lie in this folder; empty: anywhere
    page: bool = True  # a page at "/" to talk to the model and to watch the engine
    enable_admin: bool = False  # routes that change the engine: /pause, /v1/load_lora_adapter, ...
    vllm_metrics: bool = False  # /metrics has vLLM's names beside Quire's
    log_level: str = "info"  # debug, info, warning or error
    log_file: str | None = None  # JSON lines go there; without it to stderr
    log_requests: bool = False  # a line for each answer, without texts
    otlp_traces_endpoint: str | None = None  # spans of requests go there: http://localhost:4318/v1/traces

    def __post_init__(self) -> None:
        """Raises ValueError, naming the field, for what cannot be."""
        if not 0 <= self.port <= 65535:
            raise ValueError(f"port must be between 0 and 65535, got {self.port}")
        for name in ("max_body_bytes", "max_header_bytes", "max_header_count"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("max_concurrent_requests", "max_concurrent_requests_per_key"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)}")
        if any(not name for name in self.served_model_name):
            raise ValueError("served_model_name must be text, at least one character, got ''")
        for name in ("shutdown_timeout", "client_timeout"):
            if not 0 <= getattr(self, name) < 1e9:
                raise ValueError(f"{name} must be between 0 and 1e9 seconds, got {getattr(self, name)}")
        if self.uds is not None and not os.path.isdir(os.path.dirname(self.uds) or "."):
            raise ValueError(f"uds must be a path in a folder that there is, got {self.uds!r}")
        if bool(self.ssl_certfile) != bool(self.ssl_keyfile):
            raise ValueError("ssl_certfile and ssl_keyfile go together; give both")
        if self.ssl_cert_reqs not in (0, 1, 2):
            raise ValueError(f"ssl_cert_reqs must be 0, 1 or 2, got {self.ssl_cert_reqs}")
        if self.ssl_cert_reqs and not (self.ssl_certfile and self.ssl_ca_certs):
            raise ValueError(
                "ssl_cert_reqs needs ssl_certfile, ssl_keyfile and ssl_ca_certs; give all, or leave it at 0"
            )
        if self.lora_root and not os.path.isdir(self.lora_root):
            raise ValueError(f"lora_root must be a folder that there is, got {self.lora_root!r}")
        if self.lora_modules:
            self._check_lora_names()
        endpoint = self.otlp_traces_endpoint
        if endpoint is not None and not endpoint.startswith(("http://", "https://")):
            raise ValueError(
                "otlp_traces_endpoint must be a URL like http://localhost:4318/v1/traces, "
                f"got {endpoint[:200]!r}"
            )

    def _check_lora_names(self) -> None:
        seen: set[str] = set()
        for module in self.lora_requests():
            if module.lora_name in seen:
                raise ValueError(f"lora_modules has '{module.lora_name}' twice; give each a name of its own")
            seen.add(module.lora_name)

    def lora_requests(self) -> list[LoRARequest]:
        """The adapters of ``lora_modules``. Raises ValueError for an entry that is none."""
        return [_lora_module(text) for text in self.lora_modules]

    def check_lora_modules(self, enable_lora: bool, model_names: Collection[str]) -> None:
        """Raises ValueError, naming it, for an adapter that the engine or the model's names leave no room
        for, or that is not there."""
        modules = self.lora_requests()
        if modules and not enable_lora:
            raise ValueError("lora_modules needs enable_lora; give --enable-lora, too")
        for module in modules:
            if module.lora_name in model_names:
                raise ValueError(
                    f"lora_modules: '{module.lora_name}' is the model's own name; choose another"
                )
            if not os.path.isdir(module.lora_path):
                raise ValueError(
                    f"lora_modules: '{module.lora_name}': {str(module.lora_path)!r} is no directory that "
                    "there is; give one with adapter_config.json, as PEFT saves them"
                )

    def check_tls(self) -> None:
        """Raises ValueError, naming the field, for files that TLS cannot begin with."""
        if not self.ssl_certfile:
            return
        import ssl

        def refuse_password() -> str:
            raise ValueError("ssl_keyfile is encrypted; give a key without a password")

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        for name in ("ssl_certfile", "ssl_keyfile", "ssl_ca_certs"):
            path = getattr(self, name)
            try:
                if path is not None:
                    Path(path).read_bytes()
            except OSError as error:
                raise ValueError(f"{name} cannot be read: {error}") from None
        try:
            context.load_cert_chain(self.ssl_certfile, self.ssl_keyfile, refuse_password)
        except ssl.SSLError as error:
            raise ValueError(
                f"ssl_certfile {self.ssl_certfile!r} and ssl_keyfile {self.ssl_keyfile!r} are not a "
                f"certificate and its key, as PEM: {error}"
            ) from None
        try:
            if self.ssl_ca_certs is not None:
                context.load_verify_locations(self.ssl_ca_certs)
        except ssl.SSLError as error:
            raise ValueError(
                f"ssl_ca_certs {self.ssl_ca_certs!r} has no certificates, as PEM: {error}"
            ) from None

    def check_parsers(self) -> None:
        """Raises ValueError, with the names that are known, for a parser that is not."""
        from quire._core import ChatFormat

        ChatFormat(reasoning_parser=self.reasoning_parser or None, tool_parser=self.tool_parser or None)

    def template_text(self) -> str:
        """The chat template, or what is in the file of that name. Raises ValueError for one without text."""
        template = self.chat_template
        if not template or "{" in template or "\n" in template:
            return template
        try:
            return Path(template).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(
                f"chat_template must be Jinja or the path of a file that has it: {error}"
            ) from None

    def api_keys(self) -> list[bytes]:
        """Those given, and those in the file. Raises ValueError for a file without any."""
        keys = list(self.api_key)
        if self.api_key_file is not None:
            try:
                with open(self.api_key_file, encoding="utf-8") as file:
                    lines = [line.strip() for line in file]
            except (OSError, UnicodeDecodeError) as error:
                raise ValueError(f"api_key_file cannot be read: {error}") from None
            found = [line for line in lines if line and not line.startswith("#")]
            if not found:
                raise ValueError(f"api_key_file {self.api_key_file!r} has no key; write one in each line")
            keys += found
        for key in keys:
            if not key or not key.isascii() or any(c.isspace() for c in key):
                raise ValueError("api_key must be ASCII text without white space, at least one character")
        return [key.encode() for key in keys]


def _lora_module(text: str) -> LoRARequest:
    from quire.lora import LoRARequest

    expected = 'lora_modules must be name=path, or JSON like {"name": "a", "path": "b"}, got '
    if not text.lstrip().startswith("{"):
        name, _, path = text.partition("=")
        values: dict[str, Any] = {"name": name, "path": path}
    else:
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{expected}{text[:200]!r}: {error}") from None
    for key, value in values.items():
        if key not in ("name", "path", "base_model_name", "is_3d_lora_weight"):
            raise ValueError(f"{expected}{text[:200]!r}: '{key:.100}' is no key of it")
        # There is one model, whatever it is called in vLLM's.
        if key == "base_model_name" and not isinstance(value, str | None):
            raise ValueError(f"{expected}{text[:200]!r}: base_model_name must be a text")
        # The adapter's file says so itself.
        if key == "is_3d_lora_weight" and not isinstance(value, bool | None):
            raise ValueError(f"{expected}{text[:200]!r}: is_3d_lora_weight must be true or false")
    for key in ("name", "path"):
        if not isinstance(values.get(key), str) or not values[key]:
            raise ValueError(f"{expected}{text[:200]!r}, whose {key} is missing")
    try:
        return LoRARequest(values["name"], lora_path=values["path"])
    except ValueError as error:
        raise ValueError(f"lora_modules: {error}") from None


_SECRETS = ("api_key",)


def dump_serve_config(config: ServeConfig) -> str:
    """The server's part of a file for ``--config``: YAML, each value as JSON. Keys are not shown."""
    lines = []
    for name, value in asdict(config).items():
        key = name.replace("_", "-")
        if name in _SECRETS and value:
            lines.append(f"# {key} is set, and not shown")
        elif value is not None:
            lines.append(f"{key}: {json.dumps(value, ensure_ascii=False)}")
    return "\n".join(lines) + "\n"
