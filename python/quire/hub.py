"""Downloads from the Hugging Face hub, by the package ``huggingface_hub`` (extra ``quire[hub]``)."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from quire import _core

# What is read beside the weights. Wildcards are fnmatch's.
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "additional_chat_templates/*.jinja",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "tekken.json",
    "*.tiktoken",
    "tiktoken.model",
)
CONFIG_FILES = ("config.json", "generation_config.json")
_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"


def download(
    name: str,
    revision: str,
    *,
    quantization: str,
    files: str,
    download_dir: str | None,
    field: str,
    missing: str,
) -> str:
    """The directory of a snapshot with the files that are needed, or the GGUF file of a quantization.

    They are downloaded with a progress bar.

    What the weights are for comes first, so that a snapshot with weights is whole. ``missing`` is the file
    that a snapshot in the cache lacks. Where the hub is and who asks is said by ``huggingface_hub``'s own
    variables (HF_ENDPOINT, HF_TOKEN, HF_HUB_OFFLINE, HF_HOME). Raises ValueError, naming ``field``.
    """
    lacks = f"the hub's cache lacks its {missing}" if missing else "the hub's cache does not have it"
    begin = f"{field}: no directory {name!r}, and {lacks}"
    if _is_set("HF_HUB_OFFLINE") or _is_set("TRANSFORMERS_OFFLINE"):
        raise ValueError(f"{begin}; HF_HUB_OFFLINE forbids a download: unset it, or give a directory")
    try:
        import huggingface_hub
    except ImportError:
        raise ValueError(f"{begin}; to download it: pip install 'quire[hub]', or give a directory") from None

    def fetch(at: str | None, patterns: list[str]) -> Path:
        return Path(
            huggingface_hub.snapshot_download(
                name, revision=at, cache_dir=download_dir or None, allow_patterns=patterns
            )
        )

    try:
        if quantization:
            return _fetch_gguf(huggingface_hub.HfApi(), fetch, name, revision, quantization)
        small = [*TOKENIZER_FILES]
        if files != "tokenizer":
            small += CONFIG_FILES
        if files == "model":
            small.append(_INDEX)
        snapshot = fetch(revision or None, small)
        if files == "model":
            fetch(snapshot.name, [_SINGLE, *_weight_files(snapshot)])
    except Exception as error:  # whatever the package and what it stands on make of it
        raise ValueError(f"{begin}; its download failed: {_reason(huggingface_hub, error)}") from error
    # Where the hub cannot be reached, what the cache has of it is all that comes.
    why = (
        "it has none, or cannot be reached; give a model of transformers' whose weights are safetensors, or "
        f"a GGUF file by its quantization, like {name}:Q4_K_M"
    )
    if files != "tokenizer" and not (snapshot / "config.json").exists():
        raise ValueError(f"{field}: the hub gave no config.json of {name!r}: {why}")
    if files == "model":
        absent = [one for one in _weight_files(snapshot) if not (snapshot / one).exists()]
        if absent and not (snapshot / _SINGLE).exists():
            raise ValueError(f"{field}: the hub gave no {absent[0]} of {name!r}: {why}")
    return str(snapshot)


def _fetch_gguf(
    api: Any, fetch: Callable[[str | None, list[str]], Path], name: str, revision: str, quantization: str
) -> str:
    names = api.list_repo_files(name, revision=revision or None)
    selected = _core.select_gguf_files(names, quantization, name)
    if not selected:
        there = [one for one in names if one.endswith(".gguf")]
        raise ValueError(f"no GGUF file of {quantization}; there are {', '.join(there) or 'none'}")
    return str(fetch(revision or None, selected) / selected[0])


def _weight_files(snapshot: Path) -> list[str]:
    """The weights that are read: model.safetensors, or the shards of the index where there is one."""
    index = snapshot / _INDEX
    if not index.exists():
        return [_SINGLE]
    try:
        shards: Any = json.loads(index.read_text()).get("weight_map", {}).values()
        return sorted({one for one in shards if isinstance(one, str) and "/" not in one})
    except (ValueError, AttributeError):
        return [_SINGLE]  # whoever reads it says what is wrong


def _is_set(variable: str) -> bool:
    return os.environ.get(variable, "").upper() in ("1", "ON", "YES", "TRUE")


def _reason(hub: Any, error: Exception) -> str:
    """In one line."""
    errors = hub.errors
    if isinstance(error, errors.GatedRepoError):
        return "it is gated: ask for access on its page, and set HF_TOKEN"
    if isinstance(error, errors.RevisionNotFoundError):
        return "the hub has no such revision"
    if isinstance(error, errors.RepositoryNotFoundError):
        return "the hub has no such model, or it is private: set HF_TOKEN to ask as somebody who may"
    if isinstance(error, errors.LocalEntryNotFoundError):
        return "the hub cannot be reached"
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]:.300}" if lines else type(error).__name__
