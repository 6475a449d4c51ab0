"""Archives of ``torch.export`` (.pt2): weights by their names, and what the graph tells of the model."""

from __future__ import annotations

import logging
import math
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quire.torch_export.archive_check import check_archive
from quire.torch_export.graph_attention import operation, read_attentions, read_output_cap
from quire.torch_export.names import renamed
from quire.torch_export.program_memory import check_memory
from quire.torch_export.sources import Source, check_storage, check_stored, first_line, read_json

if TYPE_CHECKING:
    import torch

_LAYER = re.compile(r"^model\.layers\.(\d+)\.")
# Logits' log-probabilities may differ by so much, where the program computes in float32, or else.
_TOLERANCE, _HALF_TOLERANCE = 2e-3, 0.25
_DEFAULT_POSITIONS = 4096
RECOGNISED = ("Llama", "Mistral", "Qwen 2", "Qwen 3", "Gemma 2")
# The weights of a layer, but for biases and for those that make it Qwen 3's or Gemma 2's.
_PARTS = {
    *(f"self_attn.{part}_proj.weight" for part in "qkvo"),
    *(f"mlp.{part}_proj.weight" for part in ("gate", "up", "down")),
    "input_layernorm.weight",
    "post_attention_layernorm.weight",
}
_HEAD_NORMS = {"self_attn.q_norm.weight", "self_attn.k_norm.weight"}
_OUTER_NORMS = {"pre_feedforward_layernorm.weight", "post_feedforward_layernorm.weight"}


class _Warnings(logging.Filter):
    """Keeps back the pages that torch logs of an archive which it cannot read, but for the first error."""

    cause: BaseException | None = None

    def filter(self, record: logging.LogRecord) -> bool:
        if self.cause is None and record.exc_info:
            self.cause = record.exc_info[1]
        return False


def load_program(path: Path) -> Any:
    """The program of an archive that holds nothing else. Raises ValueError for one that would run code."""
    import torch

    check_archive(path)
    warnings = _Warnings()
    log = logging.getLogger("torch.export")
    log.addFilter(warnings)
    try:
        program = torch.export.load(path)
    except Exception as error:  # whatever its reader raises
        first = first_line(warnings.cause or error)
        raise ValueError(f"{path}: cannot be read as an archive of torch.export: {first}") from None
    finally:
        log.removeFilter(warnings)
    program._guards_code = []  # source of Python's about inputs, which here are of ours
    return program


def open_program(path: Path) -> Source:
    program = load_program(path)
    weights = _weights(program)
    stored = {**weights, **_tensors_of(program.constants), **_tensors_of(_examples(program))}
    for name, value in stored.items():
        check_storage(value, f"{path}: tensor {name!r:.200}")
    check_stored(stored, path)
    tensors = {name: _returns(value) for name, value in weights.items()}
    source = Source(str(path), tensors, directory=path.parent)
    graph = _Graph(path, program)
    source.find_config = lambda: _config_of(graph, path.parent / "config.json")
    source.lacks_config = f"is a program of none of {', '.join(RECOGNISED)}, and has no config.json beside it"
    source.check = lambda directory: check_logits(program, directory, path)
    return source


def _config_of(graph: _Graph, beside: Path) -> dict[str, Any] | None:
    """What the graph tells, else what lies beside the archive."""
    try:
        found = graph.config()
    except Exception as error:  # of a graph that no torch has written, any
        if not beside.exists():
            if str(error).startswith(f"{beside.parent}{os.sep}"):
                raise
            raise graph.fail(f"its graph cannot be read: {first_line(error)}") from None
        found = None
    return found or (read_json(beside) if beside.exists() else None)


def _tensors_of(values: Mapping[Any, Any]) -> dict[str, torch.Tensor]:
    import torch

    return {str(name): value for name, value in values.items() if isinstance(value, torch.Tensor)}


def _examples(program: Any) -> dict[Any, Any]:
    """The inputs that it was exported with, by their places and names."""
    arguments, keywords = program.example_inputs or ((), {})
    return {**dict(enumerate(arguments)), **keywords}


def _weights(program: Any) -> dict[str, torch.Tensor]:
    """Its state, and what a module held otherwise by a weight's name, which torch.export makes constants."""
    constants = {
        name: value
        for name, value in program.constants.items()
        if name.endswith((".weight", ".bias")) and hasattr(value, "untyped_storage")
    }
    return constants | dict(program.state_dict)


def _returns(tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
    return lambda: tensor


class _Graph:
    """What a program is a model of, by the shapes of its weights and the operations of its graph."""

    def __init__(self, path: Path, program: Any) -> None:
        self._path = path
        self._program = program
        weights = _weights(program)
        names = renamed(weights, str(path))
        self._shapes = {new: tuple(weights[old].shape) for old, new in names.items()}
        self._storages = {new: weights[old].data_ptr() for old, new in names.items()}

    def config(self) -> dict[str, Any] | None:
        """None where it is none of the architectures that are recognised: then a config is to be given."""
        layers = {int(match[1]) for name in self._shapes if (match := _LAYER.match(name))}
        wanted = ("model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight", "model.norm.weight")
        if not layers or any(name not in self._shapes for name in wanted):
            return None
        of_layer = {_LAYER.sub("", name) for name in self._shapes if _LAYER.match(name)}
        parts = {part for part in of_layer if not part.endswith("_proj.bias")}
        if parts not in (_PARTS, _PARTS | _HEAD_NORMS, _PARTS | _OUTER_NORMS):
            return None
        is_gemma2, has_norms = parts >= _OUTER_NORMS, parts >= _HEAD_NORMS
        if not self._calls("gelu" if is_gemma2 else "silu"):
            return None
        head_dim, theta = self._rotary()
        vocab_size, hidden = self._shapes["model.embed_tokens.weight"]
        queries = self._shapes["model.layers.0.self_attn.q_proj.weight"][0]
        keys = self._shapes["model.layers.0.self_attn.k_proj.weight"][0]
        has_bias = "self_attn.q_proj.bias" in of_layer
        if is_gemma2:
            kind = "Gemma2"
        elif has_norms:
            kind = "Qwen3"
        else:
            kind = "Qwen2" if has_bias and "self_attn.o_proj.bias" not in of_layer else "Llama"
        head = self._storages.get("lm_head.weight")
        config: dict[str, Any] = {
            "architectures": [f"{kind}ForCausalLM"],
            "model_type": kind.lower(),
            "hidden_act": "gelu_pytorch_tanh" if is_gemma2 else "silu",
            "hidden_size": hidden,
            "intermediate_size": self._shapes["model.layers.0.mlp.gate_proj.weight"][0],
            "num_attention_heads": queries // head_dim,
            "num_hidden_layers": max(layers) + 1,
            "num_key_value_heads": keys // head_dim,
            "head_dim": head_dim,
            "rms_norm_eps": self._norm_eps(),
            "rope_theta": theta,
            "max_position_embeddings": self._positions(),
            "tie_word_embeddings": head is None or head == self._storages["model.embed_tokens.weight"],
            "vocab_size": vocab_size,
        }
        if kind != "Qwen2":
            config["attention_bias"] = has_bias
        if kind == "Llama":
            config["mlp_bias"] = "mlp.gate_proj.bias" in of_layer
        config |= self._attention(kind, head_dim, max(layers) + 1)
        if kind == "Llama" and config.get("sliding_window"):
            if any(part.endswith(".bias") for part in of_layer):
                raise self.fail("it has biases and a window, which neither Llama nor Mistral has")
            # Ministral is the one whose layers differ.
            kind = "Ministral" if "full_attention" in config["layer_types"] else "Mistral"
            config |= {"architectures": [f"{kind}ForCausalLM"], "model_type": kind.lower()}
        return config

    def _attention(self, kind: str, head_dim: int, num_layers: int) -> dict[str, Any]:
        """Windows, soft caps and the scale, where the architecture has a choice of them."""
        found = read_attentions(self._program.graph)
        if len(found) != num_layers:
            raise self.fail(f"the graph has {len(found)} attentions of {num_layers} layers")
        windows = {attention.window for attention in found if attention.window is not None}
        scales = {attention.scale or head_dim**-0.5 for attention in found}
        caps = {attention.soft_cap for attention in found}
        if len(windows) > 1 or len(scales) > 1 or len(caps) > 1:
            raise self.fail(
                f"layers have several windows {sorted(windows)}, scales {sorted(scales)} or caps {caps}"
            )
        scale, cap, window = scales.pop(), caps.pop(), windows.pop() if windows else None
        kinds = ["full_attention" if each.window is None else "sliding_attention" for each in found]
        if kind == "Gemma2":
            return {
                "hidden_activation": "gelu_pytorch_tanh",
                "query_pre_attn_scalar": float(f"{scale**-2:.6g}"),
                "attn_logit_softcapping": cap,
                "final_logit_softcapping": read_output_cap(self._program.graph),
                "sliding_window": window,
                "layer_types": kinds,
            }
        if not math.isclose(scale, head_dim**-0.5, rel_tol=1e-3) or cap is not None:
            raise self.fail(f"scores are scaled by {scale:.6g} with the cap {cap}, which {kind} has not")
        if window is None:
            return {}
        found_windows = {"sliding_window": window, "layer_types": kinds}
        return found_windows if kind == "Llama" else {"use_sliding_window": True, **found_windows}

    def fail(self, what: str) -> ValueError:
        return ValueError(f"{self._path}: {what}; give config, the model's config.json or its directory")

    def _calls(self, *names: str) -> list[Any]:
        """Nodes that call one of these operations."""
        return [node for node in self._program.graph.nodes if operation(node) in names]

    def _norm_eps(self) -> float:
        """What is added to the mean of the squares under each square root."""
        found: set[float] = set()
        for node in self._calls("rsqrt"):
            inner = node.args[0]
            constants = [arg for arg in getattr(inner, "args", ()) if isinstance(arg, (int, float))]
            found.update(float(value) for value in constants)
        for node in self._calls("rms_norm"):
            found.update(float(arg) for arg in node.args if isinstance(arg, float))
        if len(found) != 1:
            raise self.fail(f"the graph's norms have the epsilons {sorted(found)}, and not one")
        return found.pop()

    def _rotary(self) -> tuple[int, float]:
        """The size of a head, and the base of its frequencies."""
        program = self._program
        tensors = {**dict(program.named_buffers()), **program.constants}
        found = [value for name, value in tensors.items() if name.endswith("inv_freq") and value.dim() == 1]
        if not found:
            raise self.fail("the archive has no inv_freq, which tells the size of a head")
        frequencies = found[0].double()
        head_dim = 2 * len(frequencies)
        if head_dim < 4:
            raise self.fail(f"inv_freq has {len(frequencies)} values")
        theta = float(frequencies[1]) ** (-head_dim / 2)
        # Written in float32, and by people: the nearest number of few digits.
        theta = float(f"{theta:.4g}")
        expected = [theta ** (-2 * i / head_dim) for i in range(len(frequencies))]
        if any(
            not math.isclose(a, float(b), rel_tol=1e-3) for a, b in zip(expected, frequencies, strict=True)
        ):
            raise self.fail("inv_freq is scaled, and the graph does not tell how")
        return head_dim, theta

    def _positions(self) -> int:
        """The longest input that the program permits, where it has a bound."""
        bounds = [limits.upper for limits in self._program.range_constraints.values()]
        finite = [int(bound) for bound in bounds if str(bound).isdigit() and int(bound) < 1 << 28]
        return max([*finite, _DEFAULT_POSITIONS])


def check_logits(program: Any, directory: Path, place: Path) -> None:
    """Compares the program's logits of random tokens with the written model's. Raises ValueError."""
    import torch

    from quire._core import SamplingParams
    from quire.llm import LLM

    arguments, keywords, ids = _inputs(
        program, int(read_json(directory / "config.json")["vocab_size"]), place
    )
    try:
        module = program.module()
        check_memory(module, arguments, keywords, place.stat().st_size)
        with torch.no_grad():
            given = module(*arguments, **keywords)
    except Exception as error:  # whatever an operation does with its arguments
        raise ValueError(
            f"{place}: the program fails with token ids: {first_line(error)}; give config, and "
            "check=False (--no-check)"
        ) from None
    logits = given[0] if isinstance(given, (tuple, list)) and given else getattr(given, "logits", given)
    if not isinstance(logits, torch.Tensor) or logits.dim() != 3 or logits.shape[1] != ids.shape[1]:
        raise ValueError(
            f"{place}: the program returns no logits [batch, length, vocabulary]; "
            "check=False leaves them alone"
        )
    vocab_size = logits.shape[-1]
    expected = torch.log_softmax(logits[0].float(), dim=-1)
    length = ids.shape[1]
    llm = LLM(
        directory,
        device="cpu",
        dtype="float32",
        skip_tokenizer_init=True,
        max_model_len=length + 1,
        max_num_seqs=1,
        kv_cache_memory_bytes=256 << 20,
        max_logprobs=-1,
    )
    output = llm.generate(
        {"prompt_token_ids": ids[0].tolist()},
        SamplingParams(max_tokens=1, prompt_logprobs=-1, detokenize=False),
        use_tqdm=False,
    )[0]
    tolerance = _TOLERANCE if logits.dtype == torch.float32 else _HALF_TOLERANCE
    assert output.prompt_logprobs is not None
    for position, row in enumerate(output.prompt_logprobs[1:]):
        found = torch.full((vocab_size,), float("nan"))
        for token, logprob in (row or {}).items():
            found[token] = logprob.logprob
        worst = (found - expected[position]).abs().max().item()
        if not worst <= tolerance:
            raise ValueError(
                f"{place}: the written model's log-probabilities differ by {worst:.3g} from the program's "
                f"(at most {tolerance} would do): its graph is another one than config says; give the right "
                "config, or check=False (--no-check)"
            )


def _inputs(
    program: Any, vocab_size: int, place: Path
) -> tuple[tuple[Any, ...], dict[str, Any], torch.Tensor]:
    """The program's example with random token ids, and these."""
    import torch

    arguments, keywords = program.example_inputs or ((), {})
    everything = _examples(program)
    tokens = [
        key
        for key, value in everything.items()
        if isinstance(value, torch.Tensor) and value.dtype == torch.int64
    ]
    if not tokens or everything[tokens[0]].dim() != 2:
        raise ValueError(
            f"{place}: the program takes no token ids [batch, length]; check=False leaves logits alone"
        )
    shape = everything[tokens[0]].shape
    row = torch.randint(0, vocab_size, (1, shape[1]), generator=torch.Generator().manual_seed(0))
    ids = everything[tokens[0]] = row.expand(shape).contiguous()
    return (
        tuple(everything[i] for i in range(len(arguments))),
        {key: everything[key] for key in keywords},
        ids,
    )
