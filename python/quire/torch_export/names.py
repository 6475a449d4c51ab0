"""Names of tensors, as a directory has them."""

from __future__ import annotations

from collections.abc import Collection

# What compilation, sharding and checkpointing put between the parts of a name.
_WRAPPERS = ("_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")
_EMBEDDING = "embed_tokens.weight"


def renamed(names: Collection[str], place: str) -> dict[str, str]:
    """Each name, and what it is in a Hugging Face checkpoint: ``model.layers...`` and ``lm_head``.

    Wrappers' prefixes go, and what a model without a head lacks comes. Raises ValueError when two become one.
    """
    plain = {name: _without_wrappers(name) for name in names}
    embedding = min((name for name in plain.values() if name.endswith(_EMBEDDING)), key=len, default=None)
    if embedding is None or embedding.endswith(
        "decoder." + _EMBEDDING
    ):  # names of an architecture of their own
        return plain
    inner = embedding.removesuffix(_EMBEDDING)  # "model." in a whole model
    outer = inner.removesuffix("model.")
    found: dict[str, str] = {}
    taken: dict[str, str] = {}
    for name, short in plain.items():
        if short.startswith(inner):
            new = "model." + short.removeprefix(inner)
            if not inner and short.startswith("lm_head."):
                new = short
        else:
            new = short.removeprefix(outer)
        if new in taken:
            raise ValueError(f"{place}: {name!r} and {taken[new]!r} are both {new!r}; which one is meant?")
        taken[new] = name
        found[name] = new
    return found


def _without_wrappers(name: str) -> str:
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "")
    while name.startswith("module."):
        name = name.removeprefix("module.")
    return name
