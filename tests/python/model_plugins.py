"""Plugin libraries, built outside of the repository from an installed tree, and models that need one."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from model_cases import sizes
from paths import ROOT
from transformers import CohereConfig

PROJECT = """
cmake_minimum_required(VERSION 3.22)
project(plugins LANGUAGES CXX)
find_package(quire REQUIRED)
add_subdirectory(cohere)
quire_add_model_plugin(odd odd_plugin.cpp)
"""


def run(*command: str | Path, **environment: str) -> str:
    done = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | environment,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def built_plugins(build_dir: Path, temporary: pytest.TempPathFactory) -> Path:
    """Where libcohere.so and libodd.so are, by the installed tree; built by the worker that asks first."""
    directory = temporary.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        directory = directory.parent  # of all workers
    libraries = directory / "plugins" / "libraries"
    with (directory / "plugins.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not libraries.is_dir():
            _build_plugins(build_dir, libraries)
    return libraries


def _build_plugins(build_dir: Path, libraries: Path) -> None:
    directory = libraries.parent
    directory.mkdir(exist_ok=True)
    installed, source, build = directory / "installed", directory / "source", directory / "build"
    run("cmake", "--install", build_dir, "--prefix", installed, "--component", "dev")
    shutil.copytree(ROOT / "cpp" / "examples" / "cohere", source / "cohere")
    shutil.copy(ROOT / "tests" / "python" / "data" / "odd_plugin.cpp", source)
    (source / "CMakeLists.txt").write_text(PROJECT)
    run("cmake", "-S", source, "-B", build, f"-DCMAKE_PREFIX_PATH={installed}", "-DCMAKE_CXX_FLAGS=-Werror")
    run("cmake", "--build", build, "-j", "2")
    libraries.mkdir()
    for library in (build / "cohere" / "libcohere.so", build / "libodd.so"):
        library.rename(libraries / library.name)


def cohere(**changes: Any) -> CohereConfig:
    base = {"logit_scale": 0.7, "attention_bias": True, "tie_word_embeddings": True}
    return CohereConfig(**sizes(**(base | changes)))


def write_cohere(directory: Path, demo_model: Path) -> Path:
    """A random model with the demo model's tokenizer."""
    import torch
    from transformers import CohereForCausalLM

    vocab_size = json.loads((demo_model / "config.json").read_text())["vocab_size"]
    torch.manual_seed(1)
    CohereForCausalLM(cohere(vocab_size=vocab_size, initializer_range=0.2)).save_pretrained(directory)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(demo_model / name, directory)
    return directory
