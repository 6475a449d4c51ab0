"""Triton model repositories for Hugging Face directories."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path


def write_repository(
    directory: Path,
    model: str | os.PathLike[str],
    *,
    name: str = "quire",
    parameters: Mapping[str, str] | None = None,
) -> list[str]:
    """Writes two models that serve the Hugging Face directory ``model``, and returns their names.

    ``name`` is decoupled: it streams. ``name_sync`` answers every request with one response, so it also
    works with HTTP infer and gRPC unary calls. Each has an engine of its own once it is loaded.
    ``parameters`` are the backend's (max_model_len, ...); the server checks them when it loads a model.

    Raises ValueError if the name cannot be a model's, or there is such a model already.
    """
    if not re.fullmatch(r"[A-Za-z0-9_.-]+", name) or name.startswith("."):
        raise ValueError(f"name must be letters, digits, '_', '-' and '.', got '{name}'")
    given = {"model": str(Path(model).resolve()), **(parameters or {})}
    names = [name, f"{name}_sync"]
    for model_name in names:
        if (directory / model_name).exists():
            raise ValueError(f"name: there is a model '{model_name}' in {directory} already")
    for model_name in names:
        version_directory = directory / model_name / "1"
        version_directory.mkdir(parents=True)  # the server wants one, even empty
        config = model_config(given, decoupled=model_name == name)
        (directory / model_name / "config.pbtxt").write_text(config)
    return names


def model_config(parameters: Mapping[str, str], *, decoupled: bool = True) -> str:
    """A config.pbtxt. The backend completes the rest."""
    lines = ['backend: "quire"']
    if not decoupled:
        lines.append("model_transaction_policy { decoupled: false }")
    for key, value in parameters.items():
        lines.append(f"parameters {{ key: {_quoted(key)} value {{ string_value: {_quoted(value)} }} }}")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """JSON's escapes are among those of protobuf's text format."""
    return json.dumps(text, ensure_ascii=False)
