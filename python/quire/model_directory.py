"""Which directory a model name means."""

from __future__ import annotations

import os
from pathlib import Path

DEMO_MODEL = "quire-demo"


def resolve_model(model: str | os.PathLike[str]) -> str:
    """Returns the model's directory: the bundled demo model's for ``"quire-demo"``, else ``model``.

    Raises ValueError if there is no such directory.
    """
    if model == DEMO_MODEL:
        return str(Path(__file__).parent / "demo_model")
    if not os.fspath(model):
        raise ValueError(
            f"model is empty; give a directory with config.json, or '{DEMO_MODEL}', the bundled model"
        )
    path = Path(model)
    if not path.is_dir():
        raise ValueError(
            f"model: no directory '{path}'; give one with config.json, or '{DEMO_MODEL}', the bundled model"
        )
    return str(path)
