"""Shared fixtures: where the built programs are, and small random models made with transformers."""

from __future__ import annotations

import copy
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import Browser, find_chromium
from paths import ROOT

if "PYTEST_XDIST_WORKER" in os.environ:
    # Threads of torch's and of engines, as many as cores in each worker, would wait for others', spinning.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    cores = sorted(os.sched_getaffinity(0))
    first = int(os.environ["PYTEST_XDIST_WORKER"].removeprefix("gw")) % len(cores)
    os.sched_setaffinity(0, cores[first :: int(os.environ["PYTEST_XDIST_WORKER_COUNT"])])

# No test asks the hub for a model: what looks like a name and is none ends there.
os.environ.setdefault("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="session")
def build_dir() -> Path:
    """The C++ build whose programs the tests run: $QUIRE_BUILD_DIR, or `make`'s."""
    path = ROOT / os.environ.get("QUIRE_BUILD_DIR", "build/default")
    if not path.is_dir():
        pytest.fail(f"no C++ build in {path}: run `make test`, or set QUIRE_BUILD_DIR")
    return path


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    browser = Browser(find_chromium())
    yield browser
    browser.close()


@pytest.fixture(scope="session")
def demo_model() -> Path:
    import quire.model_directory

    return Path(quire.model_directory.resolve_model("quire-demo"))


@pytest.fixture(name="copy")
def copy_of_demo_model(demo_model: Path, tmp_path: Path) -> Path:
    """A copy of the demo model to change or break."""
    path = tmp_path / "model"
    shutil.copytree(demo_model, path)
    return path


@pytest.fixture(scope="session")
def moe_model(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small trained mixture of experts, with the demo model's tokenizer, which it was trained with."""
    directory = shutil.copytree(
        ROOT / "tests" / "python" / "data" / "moe_model", tmp_path_factory.mktemp("moe") / "model"
    )
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(demo_model / name, directory)
    return directory


@pytest.fixture(scope="session")
def make_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """make_model(config, dtype="float32"): a directory with random weights; equal configs share one."""
    from random_models import write_random_model  # torch is not imported for other tests

    made: dict[str, Path] = {}

    def make(config: Any, dtype: str = "float32") -> Path:
        key = dtype + config.to_json_string(use_diff=False)
        if key not in made:
            made[key] = tmp_path_factory.mktemp("model")
            write_random_model(copy.deepcopy(config), made[key], dtype)  # saving changes a config
        return made[key]

    return make


@pytest.fixture(scope="session")
def valid_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # Not above: it wants the package, without which logits are tested on devices.
    from tiny_directories import make_directory

    return make_directory(tmp_path_factory.mktemp("valid"))


@pytest.fixture
def tiny_model(valid_directory: Path, tmp_path: Path) -> Iterator[Path]:
    """A copy to damage, which may become large."""
    path = tmp_path / "model"
    shutil.copytree(valid_directory, path)
    yield path
    shutil.rmtree(path)
