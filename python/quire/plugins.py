"""Libraries of models beside Quire's own, and the packages that bring them.

A library is loaded for one engine by ``LLM(model, plugins=["./libcohere.so"])``, or by ``load_plugin``. An
installed package brings one with an entry point, which every process that makes an engine calls once:

    [project.entry-points."quire.plugins"]
    cohere = "my_package:register"  # returns the path of a library, several, or None

Where the environment's ``QUIRE_PLUGINS`` has names, only the entry points of these names are called, and none
where it is empty; what has a '/' there is the path of a library.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Iterable
from typing import Any

from quire import _core
from quire.values import describe, path_value

GROUP = "quire.plugins"
VARIABLE = "QUIRE_PLUGINS"

_lock = threading.RLock()
_called: set[str] = set()


class ModelRegistry:
    """The architectures that engines can run."""

    @staticmethod
    def get_supported_archs() -> list[str]:
        """Their names in config.json, sorted, with those of the plugins that were loaded so far."""
        return _core.get_supported_archs()


def load_plugin(path: str | os.PathLike[str]) -> list[str]:
    """Loads a library of models for the rest of the process, and returns the architectures that it brings.

    Raises ValueError, and changes nothing, for what is no such library, one of another version of Quire, or
    one that brings nothing or what is there already.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"path must be the path of a library, got {describe(path)}")
    return _core.load_plugin(*library_paths(path))


def library_paths(value: Any) -> list[str]:
    """One path or several, as ``EngineConfig.plugins`` has them. Raises TypeError for anything else."""
    if value is None:
        return []
    if not isinstance(value, (str, os.PathLike)) and not isinstance(value, Iterable):
        raise TypeError(f"plugins must be the path of a library, or a list of them, got {describe(value)}")
    given = [value] if isinstance(value, (str, os.PathLike)) else list(value)
    paths = [path_value("plugins", one) for one in given]
    # A path object has no './'.
    return [
        path if isinstance(one, str) else os.path.abspath(path)
        for one, path in zip(given, paths, strict=True)
    ]


def load_general_plugins() -> None:
    """Calls the entry points of the group ``quire.plugins`` that were not called before, as an engine does.

    One that fails is warned of, and an engine goes on without its models. Raises ValueError for a name of
    ``QUIRE_PLUGINS`` that is none, and for one of these that fails.
    """
    wanted = _wanted_names()
    with _lock:  # who comes while they are called waits for their models
        if wanted is not None and wanted <= _called:
            return
        from importlib.metadata import entry_points  # takes milliseconds, as reading the metadata does

        found = {one.name: one for one in entry_points(group=GROUP)}
        for name in sorted((set(found) if wanted is None else wanted) - _called):
            if name not in found:
                raise ValueError(
                    f"{VARIABLE} has {name!r:.100}, which is neither the path of a library, with a '/', nor "
                    f"an entry point of the group '{GROUP}'; there are: {', '.join(sorted(found)) or 'none'}"
                )
            _called.add(name)  # first: it may make an engine
            try:
                for path in library_paths(found[name].load()()):
                    load_plugin(path)
            except Exception as error:
                message = f"plugin '{name}' ({found[name].value}) failed: {error}"
                if wanted is not None:
                    _called.discard(name)
                    raise ValueError(f"{VARIABLE}: {message}") from error
                warnings.warn(f"{message}; its models are not there", RuntimeWarning, stacklevel=2)


def _wanted_names() -> set[str] | None:
    """Those that ``QUIRE_PLUGINS`` has; None where all are wanted."""
    text = os.environ.get(VARIABLE)
    if text is None or text == "":
        return None if text is None else set()
    from quire.config_fields import read_field

    names = {one for one in read_field("plugins", text) if "/" not in one}
    return names or None
