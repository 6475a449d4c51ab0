"""Writes tensors as safetensors."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


class ShardWriter:
    """Tensors to ``model.safetensors``, or to shards of at most ``max_bytes`` and their index."""

    def __init__(self, directory: Path, max_bytes: int, report: Callable[[int], None]) -> None:
        self._directory = directory
        self._max_bytes = max_bytes
        self._report = report
        self._names: set[str] = set()
        self._shards: list[list[str]] = []
        self._tensors: dict[str, torch.Tensor] = {}
        self._bytes = 0
        self.total_bytes = 0

    def add(self, name: str, tensor: torch.Tensor) -> None:
        if name in self._names:
            raise ValueError(f"transform: gives two tensors the name {name!r:.200}")
        self._names.add(name)
        size = tensor.numel() * tensor.element_size()
        if self._tensors and self._bytes + size > self._max_bytes:
            self._flush()
        # Of its own storage, dense: views would take all of what they are of along.
        self._tensors[name] = tensor.detach().contiguous().clone()
        self._bytes += size
        self.total_bytes += size
        self._report(size)

    def finish(self) -> None:
        self._flush()
        count = len(self._shards)
        weight_map: dict[str, str] = {}
        for i, names in enumerate(self._shards):
            name = "model.safetensors" if count == 1 else f"model-{i + 1:05}-of-{count:05}.safetensors"
            (self._directory / f"shard-{i}").rename(self._directory / name)
            weight_map |= dict.fromkeys(names, name)
        if count > 1:
            index = {
                "metadata": {"total_size": self.total_bytes},
                "weight_map": dict(sorted(weight_map.items())),
            }
            write_json(self._directory / "model.safetensors.index.json", index)

    def _flush(self) -> None:
        from safetensors import SafetensorError
        from safetensors.torch import save_file

        path = self._directory / f"shard-{len(self._shards)}"
        try:
            save_file(self._tensors, path, metadata={"format": "pt"})
        except SafetensorError as error:
            raise OSError(f"{self._directory}: cannot be written: {error}") from None
        self._shards.append(list(self._tensors))
        self._tensors = {}
        self._bytes = 0
