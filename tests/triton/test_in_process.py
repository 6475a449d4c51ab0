"""The server inside another process, as its Python package has it: loaded where no linker looks."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from quire.triton.launcher import backend_directory
from quire.triton.repository import model_config
from quire.triton.server import find_server
from triton_server import skip_if_off

ROOT = Path(__file__).resolve().parents[2]

# Loads the server's library with RTLD_LOCAL, starts a server with its C API, and asks for the model.
PROGRAM = """
import ctypes, os, sys
library, repository, backends = sys.argv[1:]
triton = ctypes.CDLL(library, mode=os.RTLD_LOCAL | os.RTLD_NOW)
triton.TRITONSERVER_ErrorMessage.restype = ctypes.c_char_p
triton.TRITONSERVER_ErrorMessage.argtypes = [ctypes.c_void_p]

def call(name, *arguments):
    function = getattr(triton, name)
    function.restype = ctypes.c_void_p
    error = function(*arguments)
    if error:
        sys.exit(f"{name}: {triton.TRITONSERVER_ErrorMessage(error).decode()}")

options, server, ready = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_bool()
call("TRITONSERVER_ServerOptionsNew", ctypes.byref(options))
call("TRITONSERVER_ServerOptionsSetModelRepositoryPath", options, repository.encode())
call("TRITONSERVER_ServerOptionsSetBackendDirectory", options, backends.encode())
call("TRITONSERVER_ServerOptionsSetExitTimeout", options, 4)
call("TRITONSERVER_ServerOptionsSetStrictModelConfig", options, ctypes.c_bool(False))  # as the program has it
call("TRITONSERVER_ServerNew", ctypes.byref(server), options)
call("TRITONSERVER_ServerModelIsReady", server, b"demo", ctypes.c_int64(1), ctypes.byref(ready))
print("ready" if ready.value else "not ready")
call("TRITONSERVER_ServerStop", server)
call("TRITONSERVER_ServerDelete", server)
print("ended")
"""


def server_library() -> Path:
    """The library that the program at ``find_server()`` is linked with."""
    lines = subprocess.run(
        ["ldd", find_server()], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    [line] = [line for line in lines if "libtritonserver" in line]
    return Path(line.split("=>")[1].split("(")[0].strip())


def test_a_model_is_served_where_the_servers_symbols_are_local(tmp_path: Path, demo_model: Path) -> None:
    skip_if_off()
    (tmp_path / "demo" / "1").mkdir(parents=True)
    parameters = {"model": str(demo_model), "kv_cache_memory_bytes": "67108864", "num_threads": "1"}
    (tmp_path / "demo" / "config.pbtxt").write_text(model_config(parameters, decoupled=True))
    library = server_library()
    command = [sys.executable, "-c", PROGRAM, *map(str, (library, tmp_path, backend_directory()))]
    # The server's own libraries lie beside it, and only the program knows that.
    environment = {**os.environ, "LD_LIBRARY_PATH": str(library.parent)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split() == ["ready", "ended"], done.stderr


# What the library calls each value of an enumeration, by the prefix of abi.h's names.
NAMES = """
import ctypes, json, os, sys
library, asked = sys.argv[1], json.loads(sys.argv[2])
triton = ctypes.CDLL(library, mode=os.RTLD_LOCAL | os.RTLD_NOW)
named = {}
for function, values in asked.items():
    name_of = getattr(triton, function)
    name_of.restype = ctypes.c_char_p
    named[function] = {value: name_of(value).decode() for value in values}
print(json.dumps(named))
"""
ENUMERATIONS = {
    "TRITONSERVER_TYPE_": "TRITONSERVER_DataTypeString",
    "TRITONSERVER_PARAMETER_": "TRITONSERVER_ParameterTypeString",
    "TRITONSERVER_MEMORY_": "TRITONSERVER_MemoryTypeString",
    "TRITONSERVER_INSTANCEGROUPKIND_": "TRITONSERVER_InstanceGroupKindString",
}


def test_our_enumerators_are_the_servers() -> None:
    skip_if_off()
    source = (ROOT / "triton_backend" / "src" / "abi.h").read_text()
    ours = {name: int(value) for name, value in re.findall(r"X\((TRITON\w+), (\d+)\)", source)}
    asked: dict[str, list[int]] = {}
    expected: dict[str, dict[str, str]] = {}
    for prefix, function in ENUMERATIONS.items():
        values = {name.removeprefix(prefix): value for name, value in ours.items() if name.startswith(prefix)}
        asked[function] = list(values.values())
        expected[function] = {str(value): name for name, value in values.items()}
        assert len(values) >= 3
    expected["TRITONSERVER_DataTypeString"]["0"] = "<invalid>"
    library = server_library()
    done = subprocess.run(
        [sys.executable, "-c", NAMES, str(library), json.dumps(asked)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "LD_LIBRARY_PATH": str(library.parent)},
    )
    assert json.loads(done.stdout) == expected
