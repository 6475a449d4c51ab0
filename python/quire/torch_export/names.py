"""Names of tensors, as a directory has them."""

from __future__ import annotations

from collections.abc import Collection

# What compilation, sharding and checkpointing put between the parts of a name.
_WRAPPERS = ("_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")
_EMBEDDING = "embed_tokens.weight"
# Embeddings of architectures with names of their own, in a whole model and without its head.
_OTHER_EMBEDDINGS = (
    "model.decoder.embed_tokens.weight",
    "transformer.word_embeddings.weight",
    "transformer.wte.weight",
    "gpt_neox.embed_in.weight",
    "decoder.embed_tokens.weight",
    "word_embeddings.weight",
    "wte.weight",
    "embed_in.weight",
)


def renamed(names: Collection[str], place: str) -> dict[str, str]:
    """Each name, and what it is in a Hugging Face checkpoint: ``model.layers...`` and ``lm_head``.

    Wrappers' prefixes go, and what a model without a head lacks comes. Raises ValueError when two become one.
    """
    plain = {name: _without_wrappers(name) for name in names}
    for other in _OTHER_EMBEDDINGS:
        outer = min(
            (name.removesuffix(other) for name in plain.values() if name.endswith(other)),
            key=len,
            default=None,
        )
        if outer is not None:
            return _unique({name: short.removeprefix(outer) for name, short in plain.items()}, place)
    embedding = min((name for name in plain.values() if name.endswith(_EMBEDDING)), key=len, default=None)
    if embedding is None:
        return plain
    inner = embedding.removesuffix(_EMBEDDING)  # "model." in a whole model
    outer = inner.removesuffix("model.")
    found: dict[str, str] = {}
    for name, short in plain.items():
        if not short.startswith(inner):
            found[name] = short.removeprefix(outer)
        elif not inner and short.startswith("lm_head."):
            found[name] = short
        else:
            found[name] = "model." + short.removeprefix(inner)
    return _unique(found, place)


def _unique(found: dict[str, str], place: str) -> dict[str, str]:
    taken: dict[str, str] = {}
    for name, new in found.items():
        if new in taken:
            raise ValueError(f"{place}: {name!r} and {taken[new]!r} are both {new!r}; which one is meant?")
        taken[new] = name
    return found


def _without_wrappers(name: str) -> str:
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "")
    while name.startswith("module."):
        name = name.removeprefix("module.")
    return name
