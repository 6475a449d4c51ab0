"""Directories that have their names only when they are whole."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path


class NewDirectory:
    """``with NewDirectory(target, overwrite) as part``: ``part`` becomes ``target`` when all went well."""

    def __init__(self, target: Path, overwrite: bool) -> None:
        self._target = target
        self._overwrite = overwrite

    def __enter__(self) -> Path:
        parent = self._target.absolute().parent
        parent.mkdir(parents=True, exist_ok=True)
        self._part = Path(tempfile.mkdtemp(prefix=f".{self._target.name}.", suffix=".part", dir=parent))
        os.chmod(self._part, 0o777 & ~_umask())
        return self._part

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            shutil.rmtree(self._part, ignore_errors=True)
            return
        old = None
        if self._overwrite and self._target.exists():
            old = self._part.with_suffix(".old")
            self._target.rename(old)
        self._part.rename(self._target)
        if old is not None:
            shutil.rmtree(old)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def copy_files(source: Path, target: Path, patterns: Iterable[str]) -> None:
    for pattern in patterns:
        for found in source.glob(pattern):
            if found.is_file():
                copy = target / found.relative_to(source)
                copy.parent.mkdir(exist_ok=True)
                shutil.copyfile(found, copy)
