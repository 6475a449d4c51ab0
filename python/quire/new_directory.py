"""Directories that have their names only when they are whole."""

from __future__ import annotations

import contextlib
import errno
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
        # Of the name only so much that what surrounds it leaves a file name's 255 bytes.
        prefix = f".{self._target.name[:40]}."
        try:
            parent.mkdir(parents=True, exist_ok=True)
            self._part = Path(tempfile.mkdtemp(prefix=prefix, suffix=".part", dir=parent))
        except OSError as error:
            raise self._named(error) from None
        os.chmod(self._part, 0o777 & ~_umask())
        return self._part

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, *_: object) -> None:
        try:
            if kind is None:
                self._give_name()
            elif isinstance(error, OSError) and str(self._part) in str(error):
                raise self._named(error) from None
        finally:
            shutil.rmtree(self._part, ignore_errors=True)  # unless it has its name

    def _named(self, error: OSError) -> OSError:
        """By the name that was asked for: the one it is written under, nobody has given."""
        if error.strerror is None:  # a message of ours
            return type(error)(str(error).replace(str(self._part), str(self._target)))
        return type(error)(f"{self._target}: cannot be written: {error.strerror}")

    def _give_name(self) -> None:
        """Others may be at it too: of those that replace it the last one stays."""
        while not self._renamed():
            if not self._overwrite:
                raise ValueError(f"path: {str(self._target)!r:.200} was made by another process meanwhile")
            old = Path(tempfile.mkdtemp(prefix=f"{self._part.stem}.", suffix=".old", dir=self._part.parent))
            try:
                with contextlib.suppress(FileNotFoundError):  # another one has taken it away
                    self._target.rename(old)
                if self._renamed():
                    return
            finally:
                shutil.rmtree(old)

    def _renamed(self) -> bool:
        """False where there is a directory that is not empty."""
        try:
            self._part.rename(self._target)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise self._named(error) from None
            return False
        return True


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
