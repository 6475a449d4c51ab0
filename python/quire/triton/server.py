"""Where a tritonserver program is; a download from PyPI when there is none."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

VERSION = "2.51.0"  # of the server in the wheel
_WHEEL = "nvidia-pytriton==0.7.0"
_WHEEL_SHA256 = "21f063ff93bb426d0c06b7a55e7eb9efcfe62c0dddd9a908e9877e18710128df"
_PROGRAM = Path("pytriton", "tritonserver", "bin", "tritonserver")
# The program finds its libraries relative to itself. Python's serve backends written in Python.
_WANTED = ("pytriton/tritonserver/bin/", "nvidia_pytriton.libs/")
_UNWANTED = "nvidia_pytriton.libs/libpython"


def find_server(path: str | os.PathLike[str] | None = None) -> Path:
    """Returns ``path``, or the first of: one on PATH, NVIDIA's container's, nvidia-pytriton's, a download.

    Raises ValueError if ``path`` is no program, RuntimeError if nothing is found or can be downloaded.
    """
    if path is not None:
        if not _is_program(Path(path)):
            raise ValueError(f"server: '{path}' is not a program; give the path of tritonserver")
        return Path(path).resolve()
    return _installed_server() or _downloaded_server()


def cache_directory() -> Path:
    """Where a downloaded server is kept: ``$XDG_CACHE_HOME`` or ``~/.cache``, in ``quire``."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "quire" / f"tritonserver-{VERSION}"


def _installed_server() -> Path | None:
    candidates = [Path("/opt/tritonserver/bin/tritonserver")]
    if on_path := shutil.which("tritonserver"):
        candidates.insert(0, Path(on_path))
    spec = importlib.util.find_spec("pytriton")  # finds the folder, imports nothing
    for folder in (spec and spec.submodule_search_locations) or ():
        candidates.append(Path(folder).parent / _PROGRAM)
    return next((candidate for candidate in candidates if _is_program(candidate)), None)


def _downloaded_server() -> Path:
    directory = cache_directory()
    program = directory / _PROGRAM
    if _is_program(program):
        return program
    directory.parent.mkdir(parents=True, exist_ok=True)
    with _lock(directory.with_suffix(".lock")):
        if not _is_program(program):  # else another process was quicker
            print(f"quire: downloading tritonserver {VERSION} from PyPI to {directory}", file=sys.stderr)
            with tempfile.TemporaryDirectory(dir=directory.parent) as scratch:
                unpacked = Path(scratch, "server")
                _unpack(_download(Path(scratch)), unpacked)
                # All or nothing: an interrupted download leaves no half of a server.
                shutil.rmtree(directory, ignore_errors=True)
                unpacked.rename(directory)
    return program


def _download(directory: Path) -> Path:
    """Returns the wheel. pytriton's own dependencies stay away, and nothing is installed."""
    requirements = directory / "requirements.txt"
    requirements.write_text(f"{_WHEEL} --hash=sha256:{_WHEEL_SHA256}\n")
    command = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary=:all:", "--dest", str(directory), "-r", str(requirements)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheel = next(directory.glob("*.whl"), None)
    if done.returncode != 0 or wheel is None:
        reason = (done.stderr.strip().splitlines() or ["no wheel"])[-1]
        raise RuntimeError(
            f"server: no tritonserver found, and '{_WHEEL}' cannot be downloaded ({reason}); "
            "give --server PATH, or run inside NVIDIA's Triton container"
        )
    return wheel


def _unpack(wheel: Path, directory: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.startswith(_WANTED) and not name.startswith(_UNWANTED):
                archive.extract(name, directory)
    (directory / _PROGRAM).chmod(0o755)  # zipfile drops the bits


def _is_program(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Held by one process at a time; given back even by one that is killed."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
