"""Installs what pyproject.toml names, without building the package.

    python tools/install_requirements.py build test lint

``build``: what building requires, the package's dependencies, and CMake and Ninja if the system has none
that will do. Any other name is an extra. `pip install .[test]` would build the package as well.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import pip._vendor.tomli as tomllib

CMAKE = (3, 25)  # the first with workflow presets


def has_cmake() -> bool:
    if shutil.which("cmake") is None:
        return False
    said = subprocess.run(["cmake", "--version"], capture_output=True, text=True, check=False).stdout
    version = re.search(r"(\d+)\.(\d+)", said)
    return version is not None and (int(version[1]), int(version[2])) >= CMAKE


def requirements(pyproject: dict[str, Any], names: list[str]) -> list[str]:
    project = pyproject["project"]
    needed = []
    for name in names:
        if name != "build":
            needed += project["optional-dependencies"][name]
            continue
        needed += pyproject["build-system"]["requires"] + project["dependencies"]
        needed += [] if has_cmake() else ["cmake>={}.{}".format(*CMAKE)]
        needed += [] if shutil.which("ninja") else ["ninja"]
    return needed


def main() -> None:
    pyproject = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--disable-pip-version-check",
        "--root-user-action=ignore",
    ]
    # Bytecode of everything takes as long as the rest; Python writes what is imported.
    command += ["--no-compile", *requirements(pyproject, sys.argv[1:])]
    sys.exit(subprocess.run(command, check=False).returncode)


if __name__ == "__main__":
    main()
