"""Where the tensors of an export come from."""

from __future__ import annotations

import json
import math
import os
import pickle
import re
import sys
import warnings
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quire.torch_export.pickle_check import check_saved_pickles, foreign_name, is_archive

if TYPE_CHECKING:
    import torch

# Where a directory's weights may lie, by itself or as an index of shards: the first that is there.
WEIGHT_FILES = ("pytorch_model.bin", "model.safetensors")
INDEX_SUFFIX = ".index.json"
META_PARAMS, META_RANKS = "params.json", "consolidated.*.pth"
PROGRAM_SUFFIX = ".pt2"
# What a state dict may lie in.
_INNER_KEYS = ("state_dict", "model_state_dict", "model", "module")
_MAX_JSON_BYTES = 64 << 20  # an index of 100,000 tensors has 10 MB


@dataclass
class Source:
    """Tensors by name, each made when it is asked for."""

    place: str  # as errors name it
    tensors: dict[str, Callable[[], torch.Tensor]]
    config: dict[str, Any] | None = None
    config_place: str | None = None  # the file with it, as errors name it
    # What it may be derived from where none is given. Raises ValueError for what cannot be told.
    find_config: Callable[[], dict[str, Any] | None] | None = None
    lacks_config: str = "has no config.json beside it"  # as errors say it
    generation_config: dict[str, Any] | None = None
    directory: Path | None = None  # with a tokenizer's files, perhaps
    # Compares what was written, in a directory, with what it was made of. Raises ValueError.
    check: Callable[[Path], None] | None = None


def check_file(path: Path) -> None:
    """Raises ValueError for what is no file: a FIFO would wait for a writer, a device might never end."""
    if path.exists() and not path.is_file():
        raise ValueError(f"{path}: is not a file")


def check_records(path: Path, what: str) -> list[str]:
    """Names of the records of an archive; none of what is no archive. ``what`` it should be errors say.

    Raises ValueError for one that says of a record that it has more bytes than the file.
    """
    with path.open("rb") as stream:
        if not is_archive(stream):
            return []  # whoever reads it says what is wrong
        size = path.stat().st_size
        try:
            with zipfile.ZipFile(stream) as archive:
                records = archive.infolist()
        except Exception as error:  # of a directory that is none, any
            raise ValueError(f"{path}: cannot be read as {what}: {first_line(error)}") from None
    for record in records:
        if record.file_size > size:  # torch compresses none
            raise ValueError(
                f"{path}: record {record.filename!r:.200} has {record.file_size} bytes, the file {size}"
            )
    return [record.filename for record in records]


def first_line(error: BaseException) -> str:
    """Of what a reader says, who may quote a file's content without end, and as it is."""
    line = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in line)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text:.50} is no finite number")
    return value


class _ThereTwice(ValueError):
    pass


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Readers take the first or the last of two members of one name: two would see two models."""
    members: dict[str, Any] = {}
    for name, value in pairs:
        if name in members:
            raise _ThereTwice(f"{name!r:.200} is there twice")
        members[name] = value
    return members


def read_json(path: Path) -> dict[str, Any]:
    check_file(path)
    try:
        if (size := path.stat().st_size) > _MAX_JSON_BYTES:
            raise ValueError(f"it has {size} bytes, more than {_MAX_JSON_BYTES}")
        text = path.read_text(encoding="utf-8")
        value = json.loads(text, parse_constant=_finite, parse_float=_finite, object_pairs_hook=_members)
    except FileNotFoundError:
        raise ValueError(f"{path}: is not there") from None
    except _ThereTwice as error:
        raise ValueError(f"{path}: {error}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path}: cannot be read as JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{path}: must hold a JSON object")
    return value


def read_state_dict(path: Path) -> Mapping[str, torch.Tensor]:
    """The tensors of a file of ``torch.save``. A file with code in it is refused, and the code not run."""
    import torch

    check_file(path)

    def load(mmap: bool) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what is refused, the refusal says it
            return torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)

    try:
        check_records(path, "torch.save writes")
        with path.open("rb") as stream:
            check_saved_pickles(stream, str(path))
        try:
            content = load(mmap=True)
        except (RuntimeError, ValueError) as error:  # older files are no zip archives, and are not mapped
            if "mmap can only be used" not in str(error):
                raise
            content = load(mmap=False)
    except pickle.UnpicklingError as error:
        named = re.search(r"GLOBAL ([\w.]+)", str(error))
        name = named[1] if named else _foreign_name(path)
        wanted = f" names {name}, which" if name else ""
        raise ValueError(
            f"{path}: refused, because its pickle{wanted} is no tensor and might run code; "
            "save model.state_dict() alone"
        ) from None
    except Exception as error:  # a pickle that is none ends in any
        if str(error).startswith(f"{path}: "):
            raise
        if "TorchScript" in str(error):  # torch's own advice is to run what is in it
            raise ValueError(f"{path}: is TorchScript, which is code; save model.state_dict()") from None
        first = first_line(error) if str(error).strip() else "nothing is in it"
        raise ValueError(
            f"{path}: cannot be read as torch.save writes: {type(error).__name__}: {first}"
        ) from None
    return _state_dict_in(content, path)


def _foreign_name(path: Path) -> str | None:
    with path.open("rb") as stream:
        return None if is_archive(stream) else foreign_name(stream)


def _state_dict_in(content: Any, path: Path) -> Mapping[str, torch.Tensor]:
    import torch

    # A pickle may give dicts and tensors attributes in the place of methods: these are the types' own.
    for _ in range(3):
        if not isinstance(content, dict):
            break
        inner = [key for key in _INNER_KEYS if isinstance(dict.get(content, key), dict)]
        if not inner or any(isinstance(value, torch.Tensor) for value in dict.values(content)):
            break
        content = dict.get(content, inner[0])
    if not isinstance(content, dict) or not content:
        raise ValueError(
            f"{path}: holds {type(content).__name__}, and no state dict; save model.state_dict()"
        )
    tensors = {}
    for name, value in dict.items(content):
        if not isinstance(name, str):
            raise ValueError(f"{path}: names a tensor {name!r:.50}; names must be strings")
        if isinstance(value, torch.Tensor):
            tensors[name] = torch.Tensor.detach(value)
            check_storage(tensors[name], f"{path}: tensor {name!r:.200}")
        elif not name.endswith("_extra_state"):
            raise ValueError(
                f"{path}: {name!r:.200} is {type(value).__name__}, and no tensor; save model.state_dict()"
            )
    check_stored(tensors, path)
    return tensors


def check_stored(tensors: Mapping[str, torch.Tensor], path: Path) -> None:
    """Raises ValueError for tensors that a pickle made, and did not find in the file: of any size."""
    import torch

    dense = [tensor for tensor in tensors.values() if not tensor.is_meta and tensor.layout == torch.strided]
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in dense}
    stored, size = sum(storages.values()), path.stat().st_size
    if stored > size:
        raise ValueError(f"{path}: its tensors have {stored} bytes, the file {size}")


def check_storage(tensor: torch.Tensor, place: str) -> None:
    """Raises ValueError for a tensor with more values than are stored: a kilobyte might ask for terabytes."""
    import torch

    if tensor.is_meta or tensor.layout != torch.strided:
        return  # refused with what would do
    stored, wanted = tensor.untyped_storage().nbytes(), tensor.numel() * tensor.element_size()
    if wanted > stored:
        raise ValueError(
            f"{place} has shape {list(tensor.shape)} and {wanted} bytes, {stored} bytes are stored; "
            "save it contiguous()"
        )


def open_path(path: Path) -> Source:
    """Whatever lies there. Raises ValueError naming the file for what is not read, and why."""
    if not path.exists():
        raise ValueError(
            f"source: no {str(path)!r:.200}; give a file of torch.save, a .pt2 archive or a directory"
        )
    if path.is_dir():
        return _open_directory(path)
    check_file(path)
    if path.suffix == PROGRAM_SUFFIX:
        from quire.torch_export.programs import open_program

        return open_program(path)
    if path.suffix == ".gguf":
        raise ValueError(f"{path}: needs no export; give it to the engine as it is")
    if path.suffix == ".safetensors":
        return _open_shards(path.parent, {path.name: None})
    return _of_files(path.parent, {path: None})


def _open_directory(path: Path) -> Source:
    if (path / META_PARAMS).exists() and any(path.glob(META_RANKS)):
        from quire.torch_export.meta_llama import open_consolidated

        return open_consolidated(path)
    for name in WEIGHT_FILES:
        index = path / f"{name}{INDEX_SUFFIX}"
        if (path / name).exists():
            break
        if index.exists():
            shards = _read_index(index)
            if name.endswith(".bin"):
                return _of_files(path, {path / shard: names for shard, names in shards.items()})
            return _open_shards(path, shards)
    else:
        raise ValueError(f"{path}: has no {', '.join(WEIGHT_FILES)}, index of one of them, or {META_RANKS}")
    if name.endswith(".bin"):
        return _of_files(path, {path / name: None})
    return _open_shards(path, {name: None})


def _read_index(index: Path) -> dict[str, set[str] | None]:
    """The names in each shard."""
    content = read_json(index)
    if "weight_map" not in content:
        raise ValueError(f"{index}: 'weight_map' is missing")
    weight_map = content["weight_map"]
    if not isinstance(weight_map, dict) or not weight_map:
        raise ValueError(
            f"{index}: 'weight_map' must be an object with each tensor's file, got {weight_map!r:.50}"
        )
    shards: dict[str, set[str] | None] = {}
    directory = index.parent.resolve()
    # In the hub's cache all files are links, to blobs/ beside snapshots/.
    places = [directory] + ([directory.parents[1] / "blobs"] if directory.parent.name == "snapshots" else [])
    for name, shard in weight_map.items():
        # A shard lies beside the index: a path could point anywhere.
        if not isinstance(shard, str) or not shard or os.path.basename(shard) != shard:
            raise ValueError(f"{index}: weight_map of {name!r} must be a file name, got {shard!r:.100}")
        try:
            target = (directory / shard).resolve()
            target.exists()
        except (ValueError, OSError, RuntimeError):  # zero bytes, too many of others, links in a circle
            raise ValueError(f"{index}: weight_map of {name!r} is no file's name: {shard!r:.100}") from None
        if not any(place in target.parents for place in places):
            raise ValueError(f"{index}: weight_map of {name!r} leads to {target}, out of the directory")
        if not target.exists():
            raise ValueError(f"{index}: weight_map of {name!r} names {shard!r:.100}, which is not there")
        names = shards.setdefault(shard, set())
        assert names is not None
        names.add(name)
    return shards


def _with_config(source: Source, directory: Path) -> Source:
    source.directory = directory
    if (directory / "config.json").exists():
        source.config_place = str(directory / "config.json")
        source.config = read_json(directory / "config.json")
    if (directory / "generation_config.json").exists():
        source.generation_config = read_json(directory / "generation_config.json")
    return source


def _of_files(directory: Path, files: Mapping[Path, set[str] | None]) -> Source:
    tensors: dict[str, Callable[[], torch.Tensor]] = {}
    for file, names in files.items():
        found = read_state_dict(file)
        if names is not None and names != set(found):
            odd = min(names ^ set(found))
            raise ValueError(f"{file}: the index and the file do not agree on {odd!r}")
        for name, tensor in found.items():
            if name in tensors:
                raise ValueError(f"{file}: tensor {name!r} is in another shard too")
            tensors[name] = _returns(tensor)
    return _with_config(Source(str(directory), tensors), directory)


def _open_shards(directory: Path, shards: Mapping[str, set[str] | None]) -> Source:
    from safetensors import SafetensorError, safe_open

    tensors: dict[str, Callable[[], torch.Tensor]] = {}
    for shard, names in shards.items():
        check_file(directory / shard)
        try:
            file: Any = safe_open(directory / shard, framework="pt")
        except (OSError, SafetensorError) as error:
            raise ValueError(f"{directory / shard}: {error}") from None
        found: set[str] = set(file.keys())
        if names is not None and names != found:
            raise ValueError(
                f"{directory / shard}: the index and the file do not agree on {min(names ^ found)!r}"
            )
        for name in found:
            tensors[name] = partial(file.get_tensor, name)
    return _with_config(Source(str(directory), tensors), directory)


def open_module(module: Any) -> Source:
    """A live ``torch.nn.Module``."""
    tensors = {name: _returns(value) for name, value in _as_saved(module).items()}
    source = Source(f"the {type(module).__name__}", tensors)
    config: Any = getattr(module, "config", None)
    if hasattr(config, "to_dict"):
        source.config = config.to_dict()
        if not source.config.get("architectures"):
            source.config["architectures"] = [type(module).__name__]
    generation: Any = getattr(module, "generation_config", None)
    if hasattr(generation, "to_diff_dict"):
        source.generation_config = generation.to_diff_dict()
    return source


def _as_saved(module: Any) -> Mapping[str, torch.Tensor]:
    """The state dict, by a checkpoint's names and in its shapes where transformers has others in memory."""
    state: Mapping[str, torch.Tensor] = module.state_dict()
    loading = sys.modules.get("transformers.core_model_loading")
    modeling = sys.modules.get("transformers.modeling_utils")
    if loading is None or modeling is None or not isinstance(module, modeling.PreTrainedModel):
        return state
    revert: Callable[..., Mapping[str, torch.Tensor]] | None = getattr(
        loading, "revert_weight_conversion", None
    )
    return state if revert is None else revert(module, dict(state))


def _returns(tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
    return lambda: tensor
