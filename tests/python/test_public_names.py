"""The committed type stubs list every public name of the extension."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

from paths import ROOT


def public_names(path: Path) -> set[str]:
    """Module-level names and class members, as 'Class.member'."""
    names = set()
    for node in ast.parse(path.read_text()).body:
        for name in _defined(node):
            names.add(name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{name}" for member in node.body for name in _defined(member)}
    return {name for name in names if not name.split(".")[-1].startswith("_")}


def _defined(node: ast.stmt) -> list[str]:
    if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
        return [node.name]
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return [node.target.id]
    if isinstance(node, ast.Assign):
        return [target.id for target in node.targets if isinstance(target, ast.Name)]
    return []


def test_the_committed_stubs_are_the_generated_ones(tmp_path: Path) -> None:
    generated = tmp_path / "_core.pyi"
    command = [sys.executable, "-m", "nanobind.stubgen", "-q", "-m", "quire._core", "-o", str(generated)]
    subprocess.run(command, check=True, capture_output=True)
    committed = (ROOT / "python" / "quire" / "_core.pyi").read_text()
    assert committed == generated.read_text(), "run `make stubs`"


def test_no_public_name_is_missing_from_the_stubs(tmp_path: Path) -> None:
    """pybind11-stubgen reads the module in its own way; its types are not used, its names are."""
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pybind11_stubgen",
            "--ignore-all-errors",
            "-o",
            str(tmp_path),
            "quire._core",
        ],
        check=True,
        capture_output=True,
    )
    found = public_names(next(tmp_path.rglob("_core.pyi")))
    ours = public_names(ROOT / "python" / "quire" / "_core.pyi")
    imported = {"annotations", "typing", "collections", "enum"}
    assert len(found) > 50
    assert not found - ours - imported
