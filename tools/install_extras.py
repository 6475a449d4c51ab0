"""Installs the named extras of pyproject.toml, and CMake and Ninja if the system has none.

    python tools/install_extras.py test dev

`pip install .[extras]` would build the package a second time.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import pip._vendor.tomli as tomllib


def main() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    packages = [package for extra in sys.argv[1:] for package in extras[extra]]
    packages += project["build-system"]["requires"]
    packages += [tool for tool in ("cmake", "ninja") if shutil.which(tool) is None]
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", *packages], check=True)


if __name__ == "__main__":
    main()
