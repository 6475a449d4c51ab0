"""Signatures that can be read, and complaints about names that are not in them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    import inspect

P = ParamSpec("P")
R = TypeVar("R")


def names_unknown(function: Callable[P, R]) -> Callable[P, R]:
    """A function that refuses a misspelt keyword by naming the nearest one that it has.

    Keywords of vLLM's that ask for nothing are dropped, others of its own refused with the reason.
    """
    code = function.__code__
    known = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        unknown = [name for name in kwargs if name not in known]
        if unknown:
            from quire.vllm_names import find_name  # imported late: few calls have one

            for name in unknown:
                if find_name(function.__qualname__, name, kwargs[name]) is not None:
                    raise TypeError(unknown_argument(function.__qualname__, name, known))
                del kwargs[name]
        return function(*args, **kwargs)

    return checked


def unknown_argument(owner: str, name: str, known: tuple[str, ...]) -> str:
    """What to say about a name that is not known."""
    from difflib import get_close_matches  # imported late: `import quire` stays quick

    near = get_close_matches(name, known, 1)
    hint = f"did you mean '{near[0]}'?" if near else f"see help({owner})"
    return f"{owner} has no argument '{name:.100}'; {hint}"


class SignatureOf:
    """``__signature__`` for a class whose keyword arguments are those of one of the extension's classes.

    Worked out when someone asks, from what the extension says of itself.
    """

    def __init__(self, extension_class: type, **changed: Any) -> None:
        self._class = extension_class
        self._changed = changed

    def __get__(self, instance: object, owner: type) -> inspect.Signature:
        import __future__

        import inspect

        import quire

        text = self._class.__init__.__nb_signature__[0][0]  # type: ignore[misc]
        code = compile(f"{text}: ...", "signature", "exec", __future__.annotations.compiler_flag)
        names: dict[str, Any] = {"quire": quire}
        exec(code, names)
        signature = inspect.signature(names["__init__"])
        parameters = [
            p.replace(default=self._changed.get(p.name, p.default)) for p in signature.parameters.values()
        ]
        return signature.replace(parameters=parameters[1:], return_annotation=inspect.Signature.empty)
