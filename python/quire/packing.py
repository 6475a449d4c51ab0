"""Weights as an engine has them in memory, written to files that it maps."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from quire import _core
from quire.hub import CONFIG_FILES, TOKENIZER_FILES
from quire.new_directory import NewDirectory, copy_files
from quire.plugins import load_general_plugins
from quire.values import path_value


def pack_weights(
    model: str | os.PathLike[str], path: str | os.PathLike[str], **engine_args: Any
) -> list[str]:
    """Packs a model's weights for ``device``, in ``dtype``: a file for each of ``tensor_parallel_size``.

    Returns the files' paths.

    ``engine_args`` are ``LLM``'s. ``path`` becomes a directory that can be given to ``LLM`` in the model's
    place, with its configuration and its tokenizer; further packs of the same model may be added to it. The
    model's own directory will do as well: an engine takes packed weights that suit it before others.

    An engine of packed weights maps them: it is ready at once, and processes share the memory. They hold for
    one layout of the kernels: all CPUs have the same one, and all CUDA devices. Needs the device. Raises
    ValueError or TypeError as ``LLM`` does, and OSError or MemoryError when a file cannot be written.
    """
    from quire.engine_args import EngineArgs

    config = EngineArgs(model, **engine_args).create_engine_config()
    return pack_config(config, path)


def pack_config(config: _core.EngineConfig, path: str | os.PathLike[str]) -> list[str]:
    """``pack_weights`` of a configuration."""
    load_general_plugins()
    source, target = Path(config.model), Path(path_value("path", path))
    if source.is_file():
        raise ValueError(
            f"model: {str(source)!r:.200} is one file; packed weights are made of directories, whose "
            "config.json and tokenizer go with them"
        )
    if target.exists() and not target.is_dir():
        raise ValueError(f"path: {str(target)!r:.200} is a file; give a directory, or a name for one")
    if target.exists() and target.samefile(source):
        return _core.pack_weights(config, str(target))
    if target.exists() and any(target.iterdir()):
        _check_same_model(source, target)
        return _core.pack_weights(config, str(target))
    with NewDirectory(target, overwrite=target.exists()) as part:
        copy_files(source, part, TOKENIZER_FILES)
        if config.tokenizer:
            copy_files(Path(config.tokenizer), part, TOKENIZER_FILES)
        files = _core.pack_weights(config, str(part))
        copy_files(source, part, CONFIG_FILES)
    return [str(target / Path(file).name) for file in files]


def _check_same_model(source: Path, target: Path) -> None:
    theirs = target / "config.json"
    if not theirs.is_file() or not any(target.glob("*.quire")):
        raise ValueError(
            f"path: {str(target)!r:.200} is not empty, and holds no packed weights; "
            "give a directory to be made"
        )
    if theirs.read_bytes() != (source / "config.json").read_bytes():
        raise ValueError(
            f"path: {str(target)!r:.200} has another config.json than {str(source)!r:.200}; "
            "give a directory to be made"
        )
