"""What an archive of torch.export may hold: ``torch.export.load`` alone would run code of it."""

from __future__ import annotations

import io
import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import quire
import torch
from quire.torch_export.archive_check import check_archive

TRACE = "evil-was-here"


class Evil:
    def __reduce__(self) -> Any:
        return (open, (TRACE, "w"))


class Doubled(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"y": self.linear(x) * x.shape[0]}


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program with a size that is a symbol."""
    path = tmp_path_factory.mktemp("archive") / "model.pt2"
    sizes = {"x": {0: torch.export.Dim("n", min=2, max=64)}}
    torch.export.save(torch.export.export(Doubled(), (torch.zeros(4, 3),), dynamic_shapes=sizes), path)
    return path


def rewrite(source: Path, target: Path, changes: dict[str, Callable[[bytes], bytes]], **added: bytes) -> Path:
    """Copies the records of an archive, some of them changed."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        root = old.namelist()[0].split("/")[0]
        for name in old.namelist():
            change = changes.get(name.removeprefix(f"{root}/"))
            new.writestr(name, change(old.read(name)) if change else old.read(name))
        for name, content in added.items():
            new.writestr(f"{root}/{name}", content)
    return target


def pickled(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def with_pickle(content: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/data.pkl", content)
        archive.writestr("archive/version", "3")
    return buffer.getvalue()


def in_program(edit: Callable[[Any], None]) -> dict[str, Callable[[bytes], bytes]]:
    def change(content: bytes) -> bytes:
        program = json.loads(content)
        edit(program["graph_module"])
        return json.dumps(program).encode()

    return {"models/model.json": change}


def set_target(target: str) -> dict[str, Callable[[bytes], bytes]]:
    return in_program(lambda module: module["graph"]["nodes"][-1].update(target=target))


def set_size(text: str) -> dict[str, Callable[[bytes], bytes]]:
    def edit(module: Any) -> None:
        for value in module["graph"]["sym_int_values"].values():
            value["as_expr"]["expr_str"] = text

    return in_program(edit)


def set_tree(text: str) -> dict[str, Callable[[bytes], bytes]]:
    return in_program(lambda module: module["module_call_graph"][0]["signature"].update(out_spec=text))


def set_payload(kind: str, **values: Any) -> dict[str, Callable[[bytes], bytes]]:
    def change(content: bytes) -> bytes:
        config = json.loads(content)
        next(iter(config["config"].values())).update(values)
        return json.dumps(config).encode()

    return {f"data/{kind}/model_{kind}_config.json": change}


TREE = '[1, {"type": %s, "context": %s, "children_spec": []}]'
OPEN = f"__import__('builtins').open('{TRACE}', 'w')"
HOSTILE: dict[str, tuple[dict[str, Any], dict[str, bytes], str]] = {
    "example": (
        {"data/sample_inputs/model.pt": lambda _: pickled((Evil(), {}))},
        {},
        r"model.pt': refused, because its pickle names io.open, which is no tensor",
    ),
    "old weights": ({}, {"data/weights/model.pt": pickled({"a": Evil()})}, "its pickle names io.open"),
    "pickled weight": (set_payload("weights", use_pickle=True), {}, "'linear.weight' is pickled"),
    "object": (
        {},
        {"data/constants/opaque_obj_0": pickle.dumps(Evil())},
        "'data/constants/opaque_obj_0' is a pick",
    ),
    "torchbind": ({}, {"data/constants/custom_obj_0": b"x"}, "is an object of TorchScript's"),
    "library": ({}, {"data/aotinductor/model/a.so": b"x"}, "is compiled code; export the model without"),
    "size": (set_size(OPEN), {}, r"the size .__import__.* is no expression of symbols and numbers"),
    "size's text": (set_size(f'Symbol("{OPEN}")'), {}, "is no expression of symbols and numbers"),
    "powers": (set_size("9**9**9**9"), {}, "the size .* is no expression of symbols and numbers"),
    "Pow": (set_size("Pow(9, Pow(9, Pow(9, 9)))"), {}, "the size .* is no expression of symbols and num"),
    "powers of powers": (set_size("((9**64)**64)**64"), {}, "the size .* is no expression of symbols and"),
    "shifts": (set_size("1 << 10**10"), {}, "the size .* is no expression of symbols and numbers"),
    "long": (set_size("s0 + " * 3000 + "s0"), {}, "the size .* is no expression of symbols and numbers"),
    "deep example": (
        {"data/sample_inputs/model.pt": lambda _: with_pickle(b"\x80\2}N" + b"\x85" * 300_000 + b"Ns.")},
        {},
        "refused, because its pickle has tuples larger than tensors need",
    ),
    "operation": (
        set_target("torch.os.system"),
        {},
        "the graph calls 'torch.os.system', which is no operation of",
    ),
    "files": (
        set_target("torch.ops.aten.from_file.default"),
        {},
        "'torch.ops.aten.from_file.default', which is no",
    ),
    "others'": (set_target("torch.ops.other.op.default"), {}, "the graph calls 'torch.ops.other.op.default'"),
    "attributes": (
        set_target("torch.ops.aten.add.__class__"),
        {},
        "the graph calls 'torch.ops.aten.add.__class__'",
    ),
    "operator": (set_target("_operator.methodcaller"), {}, "the graph calls '_operator.methodcaller'"),
    "name": (
        in_program(lambda module: module["graph"]["nodes"][-1].update(name=f"x = {OPEN}\n")),
        {},
        "'name' must hold letters, digits and dots, got",
    ),
    "type": (
        set_tree(TREE % ('"collections.defaultdict"', "null")),
        {},
        "takes or returns 'collections.defaultdict'",
    ),
    "enum": (
        set_tree(TREE % ('"builtins.dict"', json.dumps('{"__enum__": true, "fqn": "this:x", "name": "y"}'))),
        {},
        "'context' of an input or output must be names",
    ),
    "key": (
        set_tree(TREE % ('"builtins.dict"', json.dumps(json.dumps([f"a': {OPEN}, 'b"])))),
        {},
        "'context' must hold letters",
    ),
    "deep": ({"models/model.json": lambda _: b"[" * 200_000}, {}, "cannot be read as JSON"),
    "no program": ({"models/model.json": lambda _: b"{}"}, {}, "'graph_module' is missing"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_code_in_an_archive_is_refused_and_not_run(
    case: str, archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    changes, added, message = HOSTILE[case]
    hostile = rewrite(archive, tmp_path / "hostile.pt2", changes, **added)
    with pytest.raises(ValueError, match=r"hostile\.pt2: ") as refusal:
        quire.export(hostile, tmp_path / "out")
    assert refusal.match(message)
    assert [path.name for path in tmp_path.iterdir()] == ["hostile.pt2"]


def test_guards_of_a_program_are_not_run(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are Python's source, and speak of inputs that are not used."""
    monkeypatch.chdir(tmp_path)

    def change(content: bytes) -> bytes:
        return json.dumps(json.loads(content) | {"guards_code": [OPEN]}).encode()

    from quire.torch_export.programs import load_program

    program = load_program(rewrite(archive, tmp_path / "guarded.pt2", {"models/model.json": change}))
    assert program.module()(torch.ones(5, 3))["y"].shape == (5, 3)
    assert [path.name for path in tmp_path.iterdir()] == ["guarded.pt2"]


def test_what_torch_says_of_an_archive_is_in_the_error(
    archive: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """It logs pages, and refers to them."""
    path = rewrite(archive, tmp_path / "a.pt2", set_payload("weights", path_name="weight_1"))
    with pytest.raises(ValueError, match=r"a\.pt2: cannot be read as an archive of torch\.export: .*storage"):
        quire.export(path, tmp_path / "out")
    assert capfd.readouterr().err == ""


def test_a_rewritten_archive_is_what_it_was(archive: Path, tmp_path: Path) -> None:
    """Or the tests above would say nothing."""
    check_archive(archive)
    same = rewrite(archive, tmp_path / "same.pt2", {})
    check_archive(same)
    assert torch.export.load(same).module()(torch.ones(5, 3))["y"].shape == (5, 3)


def test_what_is_no_archive_is_named(archive: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.pt2"
    path.write_bytes(archive.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"a\.pt2: cannot be read as an archive of torch\.export"):
        check_archive(path)
    path.write_bytes(archive.read_bytes().replace(b"models/model.json", b"models/model\xde\xff\xff\xff\xff"))
    with pytest.raises(ValueError, match=r"a\.pt2: cannot be read as an archive of torch\.export: 'utf-8'"):
        check_archive(path)
    # Python's reader of archives, which torch.export.load falls back on, finds one anywhere in a file.
    path.write_bytes(b"x" + archive.read_bytes())
    with pytest.raises(ValueError, match=r"a\.pt2: cannot be read as an archive .*: it has no records"):
        check_archive(path)
    with zipfile.ZipFile(path, "w") as old:
        old.writestr("version", "8.14")
        old.writestr("serialized_example_inputs.pt", pickled(Evil()))
    with pytest.raises(ValueError, match=r"a\.pt2: is of torch before 2\.8; load and save it anew"):
        check_archive(path)
    torch.save({"a": torch.zeros(2)}, path)
    with pytest.raises(ValueError, match=r"a\.pt2: has no record 'models/model\.json'"):
        check_archive(path)
