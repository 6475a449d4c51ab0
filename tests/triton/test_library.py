"""The backend's library: what it shows, what it needs, and where it loads."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]

RUNPATH = "$ORIGIN:$ORIGIN/../.."  # beside it, or where the wheel has the engine

ENTRY_POINTS = {
    "TRITONBACKEND_Finalize",
    "TRITONBACKEND_GetBackendAttribute",
    "TRITONBACKEND_Initialize",
    "TRITONBACKEND_ModelFinalize",
    "TRITONBACKEND_ModelInitialize",
    "TRITONBACKEND_ModelInstanceExecute",
    "TRITONBACKEND_ModelInstanceFinalize",
    "TRITONBACKEND_ModelInstanceInitialize",
    "TRITONBACKEND_ModelInstanceReady",
}


def readelf(*arguments: str) -> str:
    return subprocess.run(["readelf", *arguments], check=True, capture_output=True, text=True).stdout


def dynamic_entries(library: Path, tag: str) -> list[str]:
    return re.findall(rf"\({tag}\).*\[(.*)\]", readelf("-dW", str(library)))


@pytest.fixture(scope="module")
def backends() -> Path:
    build = REPOSITORY / os.environ.get("QUIRE_BUILD_DIR", "build/default")
    return Path(os.environ.get("QUIRE_TRITON_BACKENDS", build / "triton_backend" / "backends"))


@pytest.fixture(scope="module")
def library(backends: Path) -> Path:
    return backends / "quire" / "libtriton_quire.so"


def test_it_shows_the_entry_points_and_nothing_else(library: Path) -> None:
    shown = set()
    for line in readelf("--dyn-syms", "-W", str(library)).splitlines():
        columns = line.split()
        if len(columns) >= 8 and columns[4] in {"GLOBAL", "WEAK"} and columns[6] != "UND":
            shown.add(columns[7].split("@")[0])
    assert shown == ENTRY_POINTS


def test_it_needs_no_server_to_link(library: Path) -> None:
    """The server's functions are looked up when it has loaded the library, wherever they are then."""
    undefined = [line for line in readelf("--dyn-syms", "-W", str(library)).splitlines() if " UND " in line]
    assert not [line for line in undefined if "TRITON" in line]
    needed = {re.sub(r"\.so.*", "", name) for name in dynamic_entries(library, "NEEDED")}
    assert needed <= {
        "libquire",
        "libstdc++",
        "libgcc_s",
        "libm",
        "libc",
        "ld-linux-x86-64",
        "ld-linux-aarch64",
    }
    assert "libquire.so.0" in dynamic_entries(library, "NEEDED")


def test_it_finds_the_engine_beside_itself(library: Path) -> None:
    assert dynamic_entries(library, "RUNPATH") == [RUNPATH]
    assert (library.parent / "libquire.so.0").is_file()


def test_it_needs_no_newer_libstdcxx_than_gcc_12s(library: Path) -> None:
    versions = re.findall(rb"GLIBCXX_3\.4\.(\d+)", library.read_bytes())
    assert max(map(int, versions), default=0) <= 30


def test_it_needs_no_newer_glibc_than_the_build_machines(library: Path) -> None:
    """2.36 is Debian 12's; images of the server are newer."""
    versions = re.findall(rb"GLIBC_2\.(\d+)", library.read_bytes())
    assert 0 < max(map(int, versions)) <= 36


def test_it_loads_outside_a_server(library: Path) -> None:
    """In a process of its own, bound at once and kept local, as the server's Python API does it."""
    mode = os.RTLD_NOW | os.RTLD_LOCAL
    code = (
        f"import ctypes; ctypes.CDLL({str(library)!r}, mode={mode}).TRITONBACKEND_Initialize; print('loaded')"
    )
    result = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert result.stdout == "loaded\n"


def test_it_is_unloaded_without_harm(library: Path) -> None:
    code = (
        "import ctypes, _ctypes; "
        f"loaded = ctypes.CDLL({str(library)!r}); _ctypes.dlclose(loaded._handle); print('closed')"
    )
    result = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert result.stdout == "closed\n"


def test_installing_the_component_gives_a_backend_directory(backends: Path, tmp_path: Path) -> None:
    build = backends.parents[1]
    if not (build / "cmake_install.cmake").is_file():
        pytest.skip(f"{build} is no build directory")
    command = ["cmake", "--install", str(build), "--component", "triton", "--prefix", str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True)
    installed = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if not path.is_dir()}
    assert installed == {"backends/quire/libtriton_quire.so", "backends/quire/libquire.so.0"}
    library = tmp_path / "backends" / "quire" / "libtriton_quire.so"
    assert dynamic_entries(library, "RUNPATH") == [RUNPATH]
    assert ctypes.CDLL(str(library)).TRITONBACKEND_Initialize
