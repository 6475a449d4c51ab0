"""Where the server's configuration comes from, and what of it is refused at start."""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from quire.cli import main
from quire.serve.config import ServeConfig
from quire.serve.log import JsonLogHandler
from quire.serve.server import bind


@pytest.fixture(autouse=True)
def nothing_is_served(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What is not refused fails instead of running for ever; the root logger is afterwards as it was."""
    monkeypatch.setattr("quire.serve.server.serve", lambda *_: pytest.fail("it was not refused"))
    root = logging.getLogger()
    before = root.handlers[:], root.level
    yield
    for handler in root.handlers:
        if isinstance(handler, JsonLogHandler):
            handler.close()
    root.handlers[:], root.level = before


def dumped(capsys: pytest.CaptureFixture[str], *flags: str) -> dict[str, Any]:
    assert main(["serve", *flags, "--dump-config"]) == 0
    return dict(yaml.safe_load(capsys.readouterr().out))


def refusal(capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    assert main(["serve", "--num-threads", "1", *flags]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1, said
    return said


def test_the_model_may_stand_by_itself(
    copy: Path, demo_model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUIRE_MODEL", str(copy))
    assert dumped(capsys)["model"] == str(copy)
    assert dumped(capsys, str(demo_model))["model"] == str(demo_model)
    last = dumped(capsys, "--max-num-seqs", "7", str(demo_model))
    assert (last["model"], last["max-num-seqs"]) == (str(demo_model), 7)
    assert dumped(capsys, str(copy), "--model", str(copy))["model"] == str(copy)
    said = refusal(capsys, str(demo_model), "--model", "another")
    assert f"MODEL '{demo_model}' and --model 'another' are two models: give one" in said


def test_the_configuration_comes_from_flags_the_environment_and_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("port: 9000\nhost: ::2\nroot-path: /a\nserved-model-name: [a, b]\nmax-num-seqs: 7\n")
    monkeypatch.setenv("QUIRE_PORT", "9001")
    monkeypatch.setenv("QUIRE_HOST", "::1")
    monkeypatch.setenv("QUIRE_ENABLE_ADMIN", "1")
    monkeypatch.setenv("QUIRE_MAX_NUM_BATCHED_TOKENS", "64")
    flags = ["serve", "--config", str(file), "--host", "::3", "--api-key", "secret", "--dump-config"]
    assert main(flags) == 0
    said = capsys.readouterr().out
    found = yaml.safe_load(said)
    assert "secret" not in said
    assert (found["host"], found["port"], found["root-path"]) == ("::3", 9001, "/a")
    assert (found["enable-admin"], found["served-model-name"]) == (True, ["a", "b"])
    assert (found["max-num-seqs"], found["max-num-batched-tokens"]) == (7, 64)
    again = tmp_path / "again.yaml"
    again.write_text(said)
    monkeypatch.delenv("QUIRE_PORT")
    monkeypatch.setenv("QUIRE_HOST", "")  # as if it were not there
    assert dumped(capsys, "--config", str(again)) == {**found, "api-key": []}


def test_adapters_are_texts_or_objects_wherever_they_come_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = [{"name": "a", "path": "/tmp", "base_model_name": "b"}, {"name": "c", "path": "/"}]
    texts = [json.dumps(one) for one in objects]
    file = tmp_path / "config.yaml"
    file.write_text(
        f"enable-lora: true\nlora-root: {tmp_path}\nlora-modules: {json.dumps([*objects, 'd=/'])}\n"
    )
    found = dumped(capsys, "--config", str(file))
    assert (found["lora-modules"], found["lora-root"]) == ([*texts, "d=/"], str(tmp_path))
    again = tmp_path / "again.yaml"
    again.write_text(yaml.safe_dump(found))
    assert dumped(capsys, "--config", str(again)) == found
    assert dumped(capsys, "--enable-lora", "--lora-modules", *texts)["lora-modules"] == texts
    monkeypatch.setenv("QUIRE_ENABLE_LORA", "1")
    for text, values in (
        ("d=/,e=/tmp", ["d=/", "e=/tmp"]),
        (json.dumps(objects), texts),
        (texts[0], texts[:1]),
        ('["d=/"]', ["d=/"]),
    ):
        monkeypatch.setenv("QUIRE_LORA_MODULES", text)
        assert dumped(capsys)["lora-modules"] == values
    monkeypatch.setenv("QUIRE_LORA_MODULES", "[1")
    said = (
        "QUIRE_LORA_MODULES in the environment: lora_modules must be texts between commas, or JSON, got '[1'"
    )
    assert said in refusal(capsys)


def test_one_name_in_a_file_is_one_and_another_flags_name_is_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("served-model-name: mine\ntool-call-parser: hermes\nlog-file: null\n")
    found = dumped(capsys, "--config", str(file))
    assert (found["served-model-name"], found["tool-parser"]) == (["mine"], "hermes")


def test_what_is_wrong_is_named_with_its_source(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "config.yaml"
    for text, said in (
        ("port: 70000", f"{file}: port must be between 0 and 65535, got 70000"),
        ("port: a", f"{file}: --port must be a valid int"),
        ("port: [1, 2]", f"{file}: --port must be one value"),
        ("enable-admin: 3", f"{file}: --enable-admin must be true or false"),
    ):
        file.write_text(text)
        assert said in refusal(capsys, "--config", str(file))
    for variable, text, said in (
        ("QUIRE_PORT", "70000", "QUIRE_PORT in the environment: port must be between"),
        ("QUIRE_SHUTDOWN_TIMEOUT", "soon", "environment: shutdown_timeout must be a number, got 'soon'"),
        ("QUIRE_LOG_REQUESTS", "maybe", "environment: log_requests must be true or false, got 'maybe'"),
        ("QUIRE_ALOWED_ORIGINS", "a", "did you mean QUIRE_ALLOWED_ORIGINS?"),
    ):
        with monkeypatch.context() as patched:
            patched.setenv(variable, text)
            assert said in refusal(capsys)
    assert "quire: --port: port must be between" in refusal(capsys, "--port", "70000")


def test_what_kubernetes_says_of_a_service_of_our_name_is_not_meant_for_us(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in {
        "QUIRE_SERVICE_HOST": "10.0.0.1", "QUIRE_SERVICE_PORT": "8000", "QUIRE_SERVICE_PORT_HTTP": "8000",
        "QUIRE_PORT": "tcp://10.0.0.1:8000", "QUIRE_PORT_8000_TCP": "tcp://10.0.0.1:8000",
        "QUIRE_PORT_8000_TCP_PROTO": "tcp", "QUIRE_PORT_8000_TCP_PORT": "8000",
        "QUIRE_PORT_8000_TCP_ADDR": "10.0.0.1",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, text)
    assert dumped(capsys)["port"] == 8000


def test_a_port_that_is_taken_is_said_to_be_before_a_model_is_looked_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quire.config.make_engine_config", lambda *_, **__: pytest.fail("it was looked for"))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        said = refusal(capsys, "--port", str(port))
        assert f"port: 127.0.0.1:{port} cannot be listened at: Address already in use" in said
    assert "cannot be listened at: " in refusal(capsys, "--host", "no.such.name.invalid")
    assert "cannot be listened at: " in refusal(capsys, "--host", "203.0.113.7")  # of documentation


def test_a_name_of_several_addresses_is_listened_at_by_all(monkeypatch: pytest.MonkeyPatch) -> None:
    addresses = [
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0)),
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("203.0.113.7", 0)),
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.2", 0)),
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: addresses)
    bound = bind(ServeConfig(host="several", port=0))
    assert bound is not None
    assert [made.getsockname()[0] for made in bound] == ["127.0.0.1", "127.0.0.2"]
    for made in bound:
        made.close()


BAD_FLAGS = [
    (("--port", "70000"), "port must be between 0 and 65535"),
    (("--api-key", "a b"), "api_key must be ASCII text without white space"),
    (("--api-key-file", "/nowhere"), "api_key_file cannot be read"),
    (("--ssl-certfile", "a"), "ssl_certfile and ssl_keyfile go together"),
    (("--ssl-cert-reqs", "2"), "ssl_cert_reqs needs ssl_certfile"),
    (("--ssl-cert-reqs", "3"), "ssl_cert_reqs must be 0, 1 or 2"),
    (("--tool-parser", "hermess"), "hermes"),
    (("--chat-template", "/nowhere"), "chat_template must be Jinja or the path"),
    (("--chat-template", "{{ messages | nothing }}"), "nothing"),
    (("--chat-template", "{% if %}"), "chat_template"),
    (("--override-generation-config", '{"temperature": -1}'), "temperature"),
    (("--uds", "/nowhere/a"), "uds must be a path in a folder"),
    (("--max-body-bytes", "0"), "max_body_bytes must be at least 1"),
    (("--max-header-bytes", "0"), "max_header_bytes must be at least 1"),
    (("--client-timeout", "-1"), "client_timeout must be between 0 and 1e9 seconds"),
    (("--log-file", "/nowhere/log"), "log_file cannot be opened"),
    (("--log-level", "loud"), "level must be one of"),
    (("--served-model-name", ""), "served_model_name"),
    (("--lora-root", "/nowhere"), "--lora-root: lora_root must be a folder that there is"),
    (("--lora-modules", "a=/"), "lora_modules needs enable_lora; give --enable-lora, too"),
    (("--enable-lora", "--lora-modules", "a=/nowhere"), "lora_modules: 'a': '/nowhere' is no directory"),
    (("--enable-lora", "--lora-modules", "a=/", "b=/", "a=/"), "--lora-modules: lora_modules has 'a' twice"),
    (
        ("--enable-lora", "--served-model-name", "b", "a", "--lora-modules", "a=/"),
        "'a' is the model's own name",
    ),
    (("--enable-lora", "--lora-modules", "a"), "lora_modules must be name=path, or JSON like"),
    (("--enable-lora", "--lora-modules", "=/"), "whose name is missing"),
    (("--enable-lora", "--lora-modules", '{"name": "a"}'), "whose path is missing"),
    (("--enable-lora", "--lora-modules", '{"name": 3, "path": "/"}'), "whose name is missing"),
    (
        ("--enable-lora", "--lora-modules", '{"name": '),
        "--lora-modules: lora_modules must be name=path, or JSON",
    ),
    (("--enable-lora", "--lora-modules", '{"name": "a", "path": "/", "rank": 3}'), "'rank' is no key of it"),
    (("--otlp-traces-endpoint", "localhost:4317"), "otlp_traces_endpoint must be a URL like http://"),
]


# What only a model tells.
NEED_A_MODEL = ("{{ messages | nothing }}", "{% if %}", '{"temperature": -1}')


@pytest.mark.parametrize(("flags", "text"), BAD_FLAGS, ids=lambda value: str(value)[:30])
def test_flags_that_cannot_be_are_refused_by_name_before_the_model_is_looked_for(
    flags: tuple[str, ...], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    model = () if flags[-1] in NEED_A_MODEL else ("no/such-model",)
    # At any port: somebody may listen at the usual one.
    assert text in refusal(capsys, *model, "--port", "0", *flags)
