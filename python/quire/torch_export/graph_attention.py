"""What a program's graph tells of its attention: scales, soft caps and windows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

# What passes values on.
_PASSING = ("to", "type_as", "contiguous", "alias", "clone", "_to_copy")


@dataclass(frozen=True)
class Attention:
    scale: float | None  # of the scores; None: 1 / sqrt(head_dim)
    soft_cap: float | None  # scores are cap * tanh(score / cap)
    window: int | None  # how many positions are seen, the last one among them


def operation(node: Any) -> str:
    """The mul of aten.mul.Tensor; nothing for what is no call."""
    return str(node.target).split(".")[1] if getattr(node, "op", "") == "call_function" else ""


def read_attentions(graph: Any) -> list[Attention]:
    """In the order of the layers."""
    found = []
    for node in graph.nodes:
        if operation(node) == "scaled_dot_product_attention":
            mask = node.args[3] if len(node.args) > 3 else node.kwargs.get("attn_mask")
            found.append(Attention(node.kwargs.get("scale"), None, _window(mask)))
        elif operation(node) in ("softmax", "_softmax"):
            scores, mask = _source(node.args[0]), None
            if operation(scores) == "add":
                scores, mask = _source(scores.args[0]), scores.args[1]
            cap, scores = _uncapped(scores)
            scale = _factor(scores)
            found.append(Attention(1.0 if scale is None else scale, cap, _window(mask)))
    return found


def read_output_cap(graph: Any) -> float | None:
    """The soft cap of logits, or None."""
    output = next(node for node in graph.nodes if node.op == "output")
    caps = [_uncapped(_source(node))[0] for node in output.all_input_nodes]
    return next((cap for cap in caps if cap is not None), None)


def _source(node: Any) -> Any:
    while operation(node) in _PASSING:
        node = node.args[0]
    return node


def _factor(node: Any) -> float | None:
    """What a product multiplies by; of a quotient, its inverse."""
    if operation(node) not in ("mul", "div") or not isinstance(node.args[1], (int, float)):
        return None
    return float(node.args[1]) if operation(node) == "mul" else 1.0 / float(node.args[1])


def _uncapped(node: Any) -> tuple[float | None, Any]:
    """The cap of ``cap * tanh(x / cap)`` and x; None and the node where it is none."""
    cap = _factor(node)
    if cap is not None and operation(bent := _source(node.args[0])) == "tanh":
        inner = _source(bent.args[0])
        divisor = _factor(inner)
        if divisor is not None and abs(cap * divisor - 1) < 1e-4:
            return cap, _source(inner.args[0])
    return None, node


def _window(mask: Any) -> int | None:
    """W where the mask keeps ``key > query - W``."""
    for node in _inputs_of(mask):
        if operation(node) == "gt":
            bound = _source(node.args[1])
            if operation(bound) == "sub" and isinstance(bound.args[1], int):
                return int(bound.args[1])
    return None


def _inputs_of(node: Any) -> Iterator[Any]:
    """The node and all that it is computed from."""
    seen, waiting = set(), [node] if hasattr(node, "all_input_nodes") else []
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen.add(node)
            waiting.extend(node.all_input_nodes)
            yield node
