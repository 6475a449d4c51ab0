"""``quire export``: weights that are one, names that are given twice, files that are none of torch's."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import quire
import torch
from model_cases import llama
from safetensors import safe_open
from transformers import AutoModelForCausalLM

SMALL = llama(hidden_size=64, num_attention_heads=1, num_key_value_heads=1)


def module_of(config: Any) -> Any:
    torch.manual_seed(2)
    module = AutoModelForCausalLM.from_config(config).eval()
    module.config.architectures = [type(module).__name__]
    return module


def names_in(directory: Path) -> set[str]:
    with safe_open(directory / "model.safetensors", framework="pt") as file:
        return set(file.keys())


def as_bin(module: Any, directory: Path, **config: Any) -> Path:
    """A directory as transformers once wrote; keys that are None are left out of its config.json."""
    directory.mkdir()
    torch.save(module.state_dict(), directory / "pytorch_model.bin")
    merged = {key: value for key, value in (module.config.to_dict() | config).items() if value is not None}
    (directory / "config.json").write_text(json.dumps(merged))
    return directory


def test_tied_weights_are_written_once(tmp_path: Path) -> None:
    module = module_of(llama(tie_word_embeddings=True))
    written = quire.export(module, tmp_path / "live")
    assert "lm_head.weight" not in names_in(written) and "model.embed_tokens.weight" in names_in(written)
    # Equal values in two places of a file are as good as one.
    with torch.no_grad():
        module.lm_head.weight = torch.nn.Parameter(module.lm_head.weight.clone())
    written = quire.export(as_bin(module, tmp_path / "bin"), tmp_path / "from_bin")
    assert "lm_head.weight" not in names_in(written)


def test_a_head_that_differs_is_not_lost_to_a_tie(tmp_path: Path) -> None:
    module = module_of(llama(tie_word_embeddings=False))
    source = as_bin(module, tmp_path / "tied", tie_word_embeddings=True)
    with pytest.raises(
        ValueError, match=r"'lm_head\.weight' and 'model\.embed_tokens\.weight' differ, and the conf"
    ):
        quire.export(source, tmp_path / "out")
    # A config of Llama's that does not say is not tied.
    silent = as_bin(module, tmp_path / "silent", tie_word_embeddings=None)
    assert "tie_word_embeddings" not in json.loads((silent / "config.json").read_text())
    assert "lm_head.weight" in names_in(quire.export(silent, tmp_path / "out"))


def test_a_transform_gives_each_name_once(tmp_path: Path) -> None:
    def same(name: str, tensor: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"a": tensor}

    with pytest.raises(ValueError, match=r"transform: gives two tensors the name 'a'"):
        quire.export(module_of(SMALL), tmp_path / "out", transform=same)
    assert list(tmp_path.iterdir()) == []


def test_views_and_shared_storages_are_written_as_they_look(tmp_path: Path) -> None:
    """Three parts of one tensor, and one that is transposed."""
    module = module_of(SMALL)
    state = module.state_dict()
    attention = "model.layers.0.self_attn."
    whole = torch.cat([state[f"{attention}{part}_proj.weight"] for part in "qkv"])
    for i, part in enumerate("qkv"):
        state[f"{attention}{part}_proj.weight"] = whole[i * 64 : (i + 1) * 64]
    down = "model.layers.1.mlp.down_proj.weight"
    state[down] = state[down].t().contiguous().t()
    assert not state[down].is_contiguous()
    torch.save(state, tmp_path / "views.pt")
    written = quire.export(tmp_path / "views.pt", tmp_path / "out", config=module.config)
    with safe_open(written / "model.safetensors", framework="pt") as file:
        for name, value in module.state_dict().items():
            assert torch.equal(file.get_tensor(name), value), name
    assert (written / "model.safetensors").stat().st_size < 1.1 * sum(v.nbytes for v in state.values())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "cannot be read as torch.save writes: EOFError"),
        (b"no checkpoint", "refused, because its pickle is no tensor"),
        (b"root:x:0:0:root:/root:/bin/bash\n", "cannot be read as torch.save writes: IndexError"),
        ([1, 2], "holds list, and no state dict"),
        (
            torch.nn.Linear(2, 2),
            "refused, because its pickle names torch.nn.modules.linear.Linear, which is no tensor",
        ),
        (
            {"model": torch.nn.Linear(2, 2), "epoch": 1},
            "refused, because its pickle names torch.nn.modules.linear.Linear",
        ),
        ("script", "is TorchScript, which is code; save model"),
        ("cut", "cannot be read as torch.save writes: File is not a zip file"),
    ],
)
def test_other_files_are_named(content: Any, message: str, tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content == "script":
        torch.jit.script(torch.nn.Linear(2, 2)).save(path)
    else:
        torch.save(content, path)
    if content == "cut":
        path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(ValueError, match=rf"a\.pt: {message}"):
        quire.export(path, tmp_path / "out")
    assert list(tmp_path.iterdir()) == [path]


NORM = "model.norm.weight"
# What asks for more than the file holds, or says what no number is.
UNTRUSTED: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "values": (
        "pytorch_model.bin",
        lambda path: torch.save({NORM: torch.zeros(1).expand(10**12)}, path),
        rf"tensor '{NORM}' has shape \[1000000000000\] and 4000000000000 bytes, 4 bytes are stored",
    ),
    "record": (
        "pytorch_model.bin",
        lambda path: write_compressed(path),
        "record 'archive/data.pkl' has 50000000 bytes, the file",
    ),
    "number": ("config.json", lambda path: path.write_text('{"a": 1e999}'), ".*: 1e999 is no finite number"),
    "constant": ("config.json", lambda path: path.write_text('{"a": NaN}'), ".*: NaN is no finite number"),
    "nesting": ("config.json", lambda path: path.write_text("[" * 100_000), ".*: maximum recursion depth"),
    "spaces": (
        "config.json",
        lambda path: os.truncate(path, 1 << 40),
        f".*: it has {1 << 40} bytes, more than",
    ),
    "nan": (
        "pytorch_model.bin",
        lambda path: torch.save({NORM: torch.tensor([1.0, float("nan")])}, path),
        rf"tensor '{NORM}' holds infinite values or NaN, which engines refuse",
    ),
    "link": (
        "pytorch_model.bin.index.json",
        lambda path: write_link_out(path),
        f"weight_map of '{NORM}' leads to /etc/passwd, out of the directory",
    ),
    "names": (
        "pytorch_model.bin.index.json",
        lambda path: path.write_text(json.dumps({"weight_map": {NORM: "/etc/passwd"}})),
        f"weight_map of '{NORM}' must be a file name, got '/etc/passwd'",
    ),
    "zero byte": (
        "pytorch_model.bin.index.json",
        lambda path: path.write_text(json.dumps({"weight_map": {NORM: "a\0.bin"}})),
        f"weight_map of '{NORM}' is no file's name: 'a.x00.bin'",
    ),
    "long name": (
        "pytorch_model.bin.index.json",
        lambda path: path.write_text(json.dumps({"weight_map": {NORM: "a" * 5000}})),
        f"weight_map of '{NORM}' is no file's name: 'aaaaa",
    ),
    "no directory": (
        "pytorch_model.bin",
        lambda path: path.write_bytes(path.read_bytes().replace(b"PK\1\2", b"PK\1\3")),
        "cannot be read as torch.save writes: Bad magic number for central directory",
    ),
    "attributes": (
        "pytorch_model.bin",
        lambda path: write_pickle(path, b"ccollections\nOrderedDict\n)RX\1\0\0\0aNs}X\5\0\0\0itemsNsb."),
        "'a' is NoneType, and no tensor",
    ),
    "deep key": (
        "pytorch_model.bin",
        lambda path: write_pickle(path, b"}N" + b"\x85" * 300_000 + b"Ns."),
        "refused, because its pickle has tuples larger than tensors need",
    ),
    "key of keys": (
        "pytorch_model.bin",
        lambda path: write_pickle(path, b"}N" + b"q\0h\0\x86" * 60 + b"Ns."),
        "refused, because its pickle has tuples larger than tensors need",
    ),
    "bytes": (
        "pytorch_model.bin",
        lambda path: write_pickle(path, b"}X\1\0\0\0acbuiltins\nbytearray\nJ\xff\xff\xff\x7f\x85Rs."),
        "refused, because its pickle names builtins.bytearray, which is no tensor",
    ),
    "byte order": (
        "pytorch_model.bin",
        lambda path: write_pickle(path, b"}.", bytes(5000)),
        "cannot be read as torch.save writes: ValueError: Unknown endianness type: (.x00){1,200}$",
    ),
    "made tensor": (
        "pytorch_model.bin",
        lambda path: write_pickle(path, b"}X\1\0\0\0actorch\nFloatTensor\nJ\0\xe1\xf5\5\x85Rs."),
        "its tensors have 400000000 bytes, the file",
    ),
}


def write_pickle(path: Path, operations: bytes, order: bytes = b"little") -> None:
    """An archive as torch.save writes it, of these operations."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in (
            ("data.pkl", b"\x80\2" + operations),
            ("byteorder", order),
            ("version", b"3\n"),
        ):
            archive.writestr(f"archive/{name}", data)


def write_compressed(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", bytes(50_000_000))


def write_link_out(index: Path) -> None:
    (index.parent / "a.bin").symlink_to("/etc/passwd")
    index.write_text(json.dumps({"weight_map": {NORM: "a.bin"}}))


@pytest.mark.parametrize("case", UNTRUSTED)
def test_what_asks_for_more_than_there_is_is_refused(case: str, tmp_path: Path) -> None:
    name, damage, message = UNTRUSTED[case]
    source = as_bin(module_of(SMALL), tmp_path / "source")
    if name.endswith(".index.json"):
        (source / "pytorch_model.bin").unlink()
    damage(source / name)
    with pytest.raises(ValueError, match=rf"source(/{re.escape(name)})?: {message}"):
        quire.export(source, tmp_path / "out")
    assert list(tmp_path.iterdir()) == [source]


def test_architectures_that_are_no_list_are_named(tmp_path: Path) -> None:
    source = as_bin(module_of(SMALL), tmp_path / "source", architectures=5)
    with pytest.raises(ValueError, match=r"config\.json: 'architectures' must be a list of strings, got 5"):
        quire.export(source, tmp_path / "out")


def test_a_rank_that_is_missing_is_named(tmp_path: Path) -> None:
    (tmp_path / "params.json").write_text(json.dumps({"dim": 8, "n_layers": 1, "n_heads": 2}))
    for rank in (0, 2):
        torch.save({"norm.weight": torch.ones(8)}, tmp_path / f"consolidated.{rank:02}.pth")
    with pytest.raises(
        ValueError, match=r"has consolidated\.00\.pth, .*02\.pth, but no consolidated\.01\.pth"
    ):
        quire.export(tmp_path, tmp_path.parent / "out")


def test_a_deep_key_of_a_file_from_before_archives(tmp_path: Path) -> None:
    torch.save({"a": torch.zeros(1)}, tmp_path / "a.pt", _use_new_zipfile_serialization=False)
    whole = (tmp_path / "a.pt").read_bytes()
    (tmp_path / "a.pt").write_bytes(whole.replace(b"}q\0", b"}q\0N" + b"\x85" * 300_000 + b"Ns", 1))
    with pytest.raises(ValueError, match=r"a\.pt: refused, because its pickle has tuples larger than"):
        quire.export(tmp_path / "a.pt", tmp_path / "out")


@pytest.mark.parametrize(
    ("name", "shapes", "message"),
    [
        ("layers.0.attention.wq.weight", [[8], [8]], "must have 2 dimensions, has 1"),
        ("layers.0.feed_forward.w1.weight", [[8, 8], [8, 4]], r"no parts of one: \[8, 8\], \[8, 4\]"),
        ("tok_embeddings.weight", [[], []], "must have 2 dimensions, has 0"),
        ("norm.weight", [[8, 1], [8, 1]], "must have 1 dimensions, has 2"),
    ],
)
def test_parts_of_ranks_that_do_not_fit_are_named(
    name: str, shapes: list[list[int]], message: str, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "params.json").write_text(json.dumps({"dim": 32, "n_layers": 1, "n_heads": 2}))
    whole = {"tok_embeddings.weight": [8, 8], "layers.0.feed_forward.w1.weight": [8, 8], "norm.weight": [8]}
    for rank, shape in enumerate(shapes):
        state = {key: torch.ones(size) for key, size in (whole | {name: shape}).items()}
        torch.save(state, source / f"consolidated.{rank:02}.pth")
    with pytest.raises(ValueError, match=rf"consolidated\.00\.pth: tensor '{name}' .*{message}"):
        quire.export(source, tmp_path / "out")


@pytest.mark.parametrize("package", ["torch", "safetensors"])
def test_without_torch_the_command_says_what_to_install(package: str, tmp_path: Path) -> None:
    code = (
        f"import sys; sys.modules['{package}'] = None\n"
        f"from quire.cli import main; sys.exit(main(['export', {str(tmp_path)!r}, 'out']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == f"quire: {package} is not installed; pip install 'quire[export]'\n"


@pytest.mark.parametrize("overwrite", [False, True])
def test_of_exports_to_one_place_all_are_whole(overwrite: bool, tmp_path: Path) -> None:
    """Another one is through while this one writes."""
    module, out = module_of(SMALL), tmp_path / "out"

    def other_first(name: str, tensor: torch.Tensor) -> torch.Tensor:
        if name == NORM:
            quire.export(module, out, overwrite=overwrite)
        return tensor

    if overwrite:
        quire.export(module, out, overwrite=True)
        quire.export(module, out, transform=other_first, overwrite=True)
    else:
        with pytest.raises(ValueError, match=r"out' was made by another process meanwhile"):
            quire.export(module, out, transform=other_first)
    assert NORM in names_in(out)
    assert list(tmp_path.iterdir()) == [out]


def test_a_name_as_long_as_a_file_system_takes(tmp_path: Path) -> None:
    assert NORM in names_in(quire.export(module_of(SMALL), tmp_path / ("x" * 255)))
