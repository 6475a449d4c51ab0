"""What ``quire.export`` does."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quire.hub import TOKENIZER_FILES
from quire.new_directory import NewDirectory, copy_files
from quire.torch_export.names import renamed
from quire.values import path_value

if TYPE_CHECKING:
    import torch

    from quire.torch_export.sources import Source

_DTYPES = ("float32", "float16", "bfloat16")
# Some exporters write what can be derived.
_DERIVED = ("rotary_emb.inv_freq", "rotary_emb.original_inv_freq", "_extra_state")

_HEADS = {"lm_head.weight", "embed_out.weight"}
_EMBEDDINGS = {
    "gpt_neox.embed_in.weight",
    "model.embed_tokens.weight",
    "model.decoder.embed_tokens.weight",
    "transformer.word_embeddings.weight",
    "transformer.wte.weight",
}
# Architectures whose head is the embedding where config.json does not say.
_TIED = {
    "BloomForCausalLM",
    "GPT2LMHeadModel",
    "Gemma2ForCausalLM",
    "Gemma3ForCausalLM",
    "OPTForCausalLM",
    "SmolLM3ForCausalLM",
}

# What an engine makes a tokenizer of; the other files only add to it.
_TOKENIZERS = (
    "tokenizer.json",
    "tekken.json",
    "tokenizer.model",
    "*.tiktoken",
    "tiktoken.model",
    "vocab.json",
)

Transform = Callable[[str, "torch.Tensor"], "torch.Tensor | Mapping[str, torch.Tensor] | None"]


def export(
    model: Any,
    path: str | os.PathLike[str],
    *,
    config: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    tokenizer: Any = None,
    dtype: str | None = None,
    max_shard_size: int = 5_000_000_000,
    transform: Transform | None = None,
    overwrite: bool = False,
    check: bool = True,
    dry_run: bool = False,
) -> Path:
    """Writes a model of torch's as a directory with safetensors and a configuration. Returns its path.

    ``model`` is a ``torch.nn.Module``, or the path of a file of ``torch.save``, a ``.pt2`` archive of
    ``torch.export``, or a directory with ``pytorch_model.bin``, its shards, safetensors, or Meta's
    ``consolidated.*.pth``. ``config`` is a dict, a config.json or the directory of one; without it the
    source's own is taken, or derived. ``tokenizer`` is one of transformers', or a directory; without it the
    files beside the source.

    ``dtype`` converts floating-point weights. ``transform(name, tensor)`` returns what is to be written in a
    tensor's place: a tensor, several by their names, or None for nothing; for quantization, say. ``check``
    compares a ``.pt2``'s logits with the written model's. ``dry_run`` prints what would be written.

    What is written is complete or not there. Raises ValueError or TypeError naming what cannot be exported
    and what would do, and which package is not installed, and OSError when it cannot be written.
    """
    _require_torch()
    import torch

    from quire.torch_export.sources import open_module, open_path

    target = Path(path_value("path", path))
    if dtype is not None and dtype not in _DTYPES:
        raise ValueError(f"dtype {dtype!r:.50} must be one of {', '.join(_DTYPES)}")
    if not isinstance(max_shard_size, int) or isinstance(max_shard_size, bool) or max_shard_size < 1:
        raise ValueError(f"max_shard_size {max_shard_size!r:.50} must be a number of bytes above 0")
    if isinstance(model, torch.nn.Module):
        source = open_module(model)
    else:
        given = Path(_source_path(model))
        _check_target(given, target)
        source = open_path(given)
    if target.is_symlink() or (target.exists() and not (overwrite and target.is_dir())):
        raise ValueError(f"path: {str(target)!r:.200} is there already; overwrite replaces a directory")
    if target.exists() and any(target.iterdir()) and not (target / "config.json").exists():
        raise ValueError(
            f"path: {str(target)!r:.200} is no model's directory (it has no config.json): remove it"
        )
    _check_tokenizer(tokenizer)
    hf_config, config_place = _config_of(config, source)
    converted = _Tensors(source, hf_config, dtype, transform)
    if dry_run:
        _print_plan(converted, target)
        return target
    _write(converted, source, hf_config, config_place, target, tokenizer, max_shard_size, overwrite, check)
    return target


def _require_torch() -> None:
    try:
        import safetensors  # noqa: F401
        import torch  # noqa: F401
    except ImportError as error:
        raise ValueError(f"{error.name} is not installed; pip install 'quire[export]'") from None


def _source_path(model: Any) -> str:
    path = path_value("model", model)
    if not path:  # to pathlib the current directory
        raise ValueError("source: is empty; give a file of torch.save, a .pt2 archive or a directory")
    return path


def _check_tokenizer(tokenizer: Any) -> None:
    if tokenizer is None or hasattr(tokenizer, "save_pretrained"):
        return
    directory = Path(path_value("tokenizer", tokenizer))
    if not directory.is_dir():
        raise ValueError(f"tokenizer: {str(directory)!r:.200} is no directory")
    if not any(found.is_file() for pattern in _TOKENIZERS for found in directory.glob(pattern)):
        raise ValueError(f"tokenizer: {str(directory)!r:.200} has no {', '.join(_TOKENIZERS)}")


def _check_target(given: Path, target: Path) -> None:
    if not given.exists():
        return  # refused with what would do
    source = given.resolve()
    resolved = target.resolve()
    if resolved == source or (source.is_dir() and source in resolved.parents) or resolved in source.parents:
        raise ValueError(
            f"path: {str(target)!r:.200} and the source are in each other; give another directory"
        )


def _config_of(config: Any, source: Source) -> tuple[dict[str, Any], str]:
    """And where it is from, as errors name it."""
    from quire.torch_export.sources import read_json

    if isinstance(config, Mapping):
        return dict(config), "config"
    if hasattr(config, "to_dict"):
        return dict(config.to_dict()), "config"
    if config is not None:
        path = Path(path_value("config", config))
        file = path / "config.json" if path.is_dir() else path
        if not file.exists():
            raise ValueError(f"config: no {str(file)!r:.200}; give a config.json or its directory")
        return read_json(file), str(file)
    found = source.find_config() if source.find_config is not None else source.config
    if found is None:
        raise ValueError(
            f"{source.place}: {source.lacks_config}; give config, the model's config.json or its directory"
        )
    return dict(found), source.config_place or source.place


class _Tensors:
    """The tensors that will be written, by their names in the directory, one at a time."""

    def __init__(
        self, source: Source, config: dict[str, Any], dtype: str | None, transform: Transform | None
    ) -> None:
        self._source = source
        self._dtype = dtype
        self._transform = transform
        # Absent, it means what it does for the engine.
        architectures = config.get("architectures")
        ties = isinstance(architectures, (list, tuple)) and not _TIED.isdisjoint(map(str, architectures))
        self._ties = bool(config.get("tie_word_embeddings", ties))
        self._names = renamed(source.tensors, source.place)

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        for old, new in sorted(self._names.items(), key=lambda pair: pair[1]):
            if new.endswith(_DERIVED):
                continue
            if self._ties and new in _HEADS:
                self._check_tied(old)
                continue
            tensor = self._checked(old, self._source.tensors[old]())
            if self._transform is None:
                yield new, self._converted(old, tensor)
                continue
            given = self._transform(new, tensor)
            if given is None:
                continue
            many = given if isinstance(given, Mapping) else {new: given}
            for name, value in many.items():
                if not isinstance(name, str):
                    raise ValueError(f"transform: names a tensor {name!r:.50}; names must be strings")
                # What a transform has quantized keeps its scales as it made them.
                yield (
                    name,
                    self._checked(name, value) if value is not tensor else self._converted(name, value),
                )

    def _check_tied(self, head: str) -> None:
        """Only a head that is the embedding is left out."""
        import torch

        embedding = next((old for old, new in self._names.items() if new in _EMBEDDINGS), None)
        if embedding is None:
            return  # refused as missing
        one, other = (self._checked(name, self._source.tensors[name]()) for name in (head, embedding))
        if one.data_ptr() != other.data_ptr() and not torch.equal(one, other):
            raise ValueError(
                f"{self._source.place}: tensors {head!r} and {embedding!r} differ, and the config ties them; "
                "give a config with tie_word_embeddings false"
            )

    def _checked(self, name: str, tensor: Any) -> torch.Tensor:
        import torch

        def refuse(what: str) -> ValueError:
            return ValueError(f"{self._source.place}: tensor {name!r} {what}")

        if not isinstance(tensor, torch.Tensor):
            raise refuse(f"is {type(tensor).__name__}, and no tensor")
        if tensor.is_meta:
            raise refuse("is on the meta device and has no values; load them first")
        if tensor.is_nested:
            raise refuse("is nested; only dense real tensors are written")
        if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_complex():
            raise refuse(f"is {tensor.layout}, {tensor.dtype}; only dense real tensors are written")
        if type(tensor).__name__ == "DTensor":
            raise refuse("is spread over processes; gather it with full_tensor()")
        return tensor.detach().cpu()

    def _converted(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        import torch

        if not tensor.is_floating_point():
            return tensor
        wanted = getattr(torch, self._dtype) if self._dtype else tensor.dtype
        if wanted == torch.float64:
            wanted = torch.float32
        converted = tensor.to(wanted)
        if tensor.element_size() == 1 or converted.isfinite().all():  # of eight bits: the engine refuses it
            return converted
        if tensor.isfinite().all():
            raise ValueError(
                f"{self._source.place}: tensor {name!r} holds {tensor.abs().max().item():.6g}, which is "
                f"beyond {self._dtype}; bfloat16 would do"
            )
        raise ValueError(
            f"{self._source.place}: tensor {name!r} holds infinite values or NaN, which engines refuse"
        )


def _write(
    tensors: _Tensors,
    source: Source,
    config: dict[str, Any],
    config_place: str,
    target: Path,
    tokenizer: Any,
    max_shard_size: int,
    overwrite: bool,
    check: bool,
) -> None:
    from quire.torch_export.writer import ShardWriter, write_json

    with NewDirectory(target, overwrite) as part:
        _check_config(config, part, config_place)
        bytes_of: dict[str, int] = {}
        with _progress() as report:
            writer = ShardWriter(part, max_shard_size, report)
            for name, tensor in tensors:
                key = str(tensor.dtype).removeprefix("torch.")
                bytes_of[key] = bytes_of.get(key, 0) + tensor.numel() * tensor.element_size()
                writer.add(name, tensor)
            writer.finish()
        floats = [key for key in bytes_of if key in _DTYPES]
        if floats:
            config["torch_dtype"] = config["dtype"] = max(floats, key=lambda key: bytes_of[key])
        write_json(part / "config.json", config)
        if source.generation_config:
            write_json(part / "generation_config.json", source.generation_config)
        if hasattr(tokenizer, "save_pretrained"):
            tokenizer.save_pretrained(part)
        elif tokenizer is not None:
            copy_files(Path(tokenizer), part, TOKENIZER_FILES)
        elif source.directory is not None:
            copy_files(source.directory, part, TOKENIZER_FILES)
        _check_loads(part, target, config_place)
        if check and source.check is not None:
            source.check(part)


def _check_config(config: Mapping[str, Any], part: Path, place: str) -> None:
    """Has the engine look at the configuration alone, before weights of many gigabytes are written."""
    from quire.memory_plan import plan
    from quire.torch_export.writer import write_json

    file = part / "config.json"
    # The dtype will be that of the weights.
    write_json(file, {key: value for key, value in config.items() if key not in ("torch_dtype", "dtype")})
    try:
        plan(part, device="cpu", skip_tokenizer_init=True, load_format="dummy")
    except ValueError as error:
        raise ValueError(str(error).replace(str(file), place).replace(str(part), place)) from None
    finally:
        file.unlink()  # an export that is cut short is no model


def _check_loads(part: Path, target: Path, config_place: str) -> None:
    """Has the engine look at names, shapes and types, without loading anything."""
    from quire.memory_plan import plan

    try:
        plan(part, device="cpu", skip_tokenizer_init=True)
    except ValueError as error:
        named = str(error).replace(str(part / "config.json"), config_place)
        raise ValueError(named.replace(str(part), str(target))) from None


class _progress:
    """A line on a terminal with what was written so far."""

    def __enter__(self) -> Callable[[int], None]:
        self._bytes = 0
        self._shows = sys.stderr is not None and sys.stderr.isatty()
        return self._report

    def _report(self, size: int) -> None:
        self._bytes += size
        if self._shows:
            print(f"\rwriting: {self._bytes / 1e9:.2f} GB", end="", file=sys.stderr, flush=True)

    def __exit__(self, *_: object) -> None:
        if self._shows and self._bytes:
            print(file=sys.stderr)


def _print_plan(tensors: _Tensors, target: Path) -> None:
    total = 0
    for name, tensor in tensors:
        total += tensor.numel() * tensor.element_size()
        print(f"{name} {str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}")
    print(f"{total} bytes would be written to {target}")
