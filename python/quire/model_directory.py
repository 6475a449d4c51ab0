"""Which directory a model's name means."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from quire import _core
from quire.values import path_value

DEMO_MODEL = "quire-demo"


def resolve_model(
    model: str | os.PathLike[str],
    *,
    revision: str | None = None,
    download_dir: str | None = None,
    files: str = "model",
    field: str = "model",
) -> str:
    """Returns the model's directory: the bundled demo model's for ``"quire-demo"``, what is there of that
    path, else that of ``"org/name"`` (or ``"org/name@revision"``) on the Hugging Face hub: from its cache
    without asking the network, or downloaded. ``"org/name:Q4_K_M"`` is the GGUF file of that quantization.

    ``files`` are those that are needed: "model", "tokenizer", or "config" alone. Raises ValueError, naming
    ``field``, if there is none, TypeError if it is no path.
    """
    name = path_value(field, model)
    if name == DEMO_MODEL:
        return str(Path(__file__).parent / "demo_model")
    if not name:
        raise ValueError(
            f"{field} is empty; give a directory with config.json, or '{DEMO_MODEL}', the bundled model"
        )
    if os.path.exists(name):  # pathlib would raise for a name that is too long
        if os.path.isdir(name):
            return str(Path(name))
        if name.endswith(".gguf"):
            return name
        raise ValueError(
            f"{field}: {name!r:.200} is no directory; give one with config.json, or a .gguf file"
        )
    hub = _core.parse_hub_name(name)
    if hub is None:
        raise ValueError(
            f"{field}: no directory {name!r:.150}; give one with config.json, a name on the hub "
            f"like 'org/name', or '{DEMO_MODEL}', the bundled model"
        )
    repository, named_revision, quantization = hub
    if revision and named_revision and revision != named_revision:
        raise ValueError(
            f"{field}: {name!r} and the revision {revision!r} are not the same; give one of them"
        )
    at = named_revision or revision or ""
    directory, missing = _core.find_cached_model(repository, at, quantization, files, download_dir or "")
    if directory and not missing:
        return directory
    from quire.hub import download  # imported late: most models are directories, or were fetched before

    return download(
        repository,
        at,
        quantization=quantization,
        files=files,
        download_dir=download_dir,
        field=field,
        missing=missing,
    )


def locate_model(model: str | os.PathLike[str], engine_args: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The model's directory, and the fields of ``EngineConfig`` beside it with the tokenizer's.

    Raises as ``resolve_model`` does.
    """
    given = dict(engine_args)
    text = {
        name: given.get(name) if isinstance(given.get(name), str) else None  # else refused as a field
        for name in ("revision", "tokenizer_revision", "download_dir")
    }
    tokenizer = given.get("tokenizer")
    if not tokenizer and text["tokenizer_revision"]:
        hub = _core.parse_hub_name(path_value("model", model))
        if hub is not None and not os.path.exists(model):
            tokenizer = hub[0]  # the model's, of another revision
    if tokenizer and not given.get("skip_tokenizer_init"):
        given["tokenizer"] = resolve_model(
            tokenizer,
            revision=text["tokenizer_revision"],
            download_dir=text["download_dir"],
            files="tokenizer",
            field="tokenizer",
        )
    files = "config" if given.get("load_format") == "dummy" else "model"
    directory = resolve_model(
        model, revision=text["revision"], download_dir=text["download_dir"], files=files
    )
    return directory, given


def located_config(model: str | os.PathLike[str], engine_args: Mapping[str, Any]) -> _core.EngineConfig:
    """The configuration of the model and the other fields, which are checked before a hub is asked for it.

    Raises as ``resolve_model`` and ``EngineConfig`` do.
    """
    # What can be read once is read twice.
    given: dict[str, Any] = {
        name: list(value) if isinstance(value, Iterator) else value for name, value in engine_args.items()
    }
    # A tokenizer may be a path here, and is checked when it is located.
    fields: dict[str, Any] = {name: value for name, value in given.items() if name != "tokenizer"}
    _core.EngineConfig(DEMO_MODEL, **fields)
    directory, located = locate_model(model, given)
    return _core.EngineConfig(directory, **located)


def model_name(model: str | os.PathLike[str]) -> str:
    """What a model is called without other names: its name on the hub, or the last part of its path."""
    is_file = str(model).endswith(".gguf")
    path = Path(model).absolute() if is_file else Path(model).resolve()  # the cache's files are links
    if str(model) == resolve_model(DEMO_MODEL):
        return DEMO_MODEL
    for snapshot in path.parents if is_file else [path]:
        repository = snapshot.parent.parent.name
        if snapshot.parent.name == "snapshots" and repository.startswith("models--"):
            return repository.removeprefix("models--").replace("--", "/", 1)
    return path.name
