"""What is installed: quick to import, small, and loadable where it claims to be."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import quire


def package_files() -> list[Path]:
    folder = Path(quire.__file__).parent
    return [p for p in folder.rglob("*") if p.is_file() and "__pycache__" not in p.parts]


def run_python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


def test_import_is_quick_and_brings_no_torch() -> None:
    code = (
        "import sys, time; start = time.process_time(); import quire; "
        "print(time.process_time() - start, 'torch' in sys.modules, 'transformers' in sys.modules)"
    )
    seconds, *heavy = min(run_python(code).split() for _ in range(3))
    assert heavy == ["False", "False"]
    assert float(seconds) < 0.2


def test_the_package_is_under_30_megabytes_with_the_demo_model(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "all.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for path in package_files():
            archive.write(path)
    assert (tmp_path / "all.zip").stat().st_size < 30e6
    assert any(path.name == "model.safetensors" for path in package_files())


def test_binaries_need_no_newer_libstdcxx_than_gcc_12s() -> None:
    """GLIBCXX_3.4.30 comes with gcc 12; Python hosts may bring an older one than the compiler used here."""
    libraries = [p for p in package_files() if ".so" in p.name]
    assert {p.name.split(".")[0] for p in libraries} >= {"_core", "libquire", "libtriton_quire"}
    for library in libraries:
        versions = re.findall(rb"GLIBCXX_3\.4\.(\d+)", library.read_bytes())
        assert max(map(int, versions), default=0) <= 30, library


def test_the_library_shows_only_its_own_names() -> None:
    """Hidden symbols: what libquire exports is the public API (and type information it must share)."""
    library = next(p for p in package_files() if p.name.startswith("libquire"))
    listing = subprocess.run(
        ["nm", "-D", "--defined-only", "-C", str(library)],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    names = [line.split(maxsplit=2)[2] for line in listing.splitlines()]
    assert any(name.startswith("quire::Engine::abort_request(") for name in names)
    inside = re.compile(r"quire::(Scheduler|BlockPool|Worker|ModelRunner|Decoder|EngineCore)\b")
    assert not [name for name in names if inside.search(name)]
    assert not [name for name in names if name.startswith("nlohmann::")]
