"""Which directory a model name means."""

from __future__ import annotations

import os
from pathlib import Path

from quire.values import path_value

DEMO_MODEL = "quire-demo"


def resolve_model(model: str | os.PathLike[str]) -> str:
    """Returns the model's directory: the bundled demo model's for ``"quire-demo"``, else ``model``.

    Raises ValueError if there is no such directory, TypeError if it is no path.
    """
    name = path_value("model", model)
    if name == DEMO_MODEL:
        return str(Path(__file__).parent / "demo_model")
    if not name:
        raise ValueError(
            f"model is empty; give a directory with config.json, or '{DEMO_MODEL}', the bundled model"
        )
    if not os.path.isdir(name):  # pathlib would raise for a name that is too long
        raise ValueError(
            f"model: no directory {name!r:.200}; give one with config.json, or '{DEMO_MODEL}', "
            "the bundled model"
        )
    return str(Path(name))
