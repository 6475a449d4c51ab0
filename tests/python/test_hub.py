"""Names of the Hugging Face hub instead of directories: from a cache, and from a hub that runs here."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import gguf
import pytest
from fake_hub import COMMIT, fake_hub
from gguf_files import write_gguf
from quire import LLM, EngineArgs, SamplingParams
from quire.cli import main
from quire.model_directory import locate_model, model_name, resolve_model

NAME = "org/name"
ENGINE = "num_threads=1, max_model_len=64"
GENERATE = f"from quire import LLM; print(LLM({NAME!r}, {ENGINE}).generate('Once', use_tqdm=False))"


def lay_out(home: Path, model: Path) -> Path:
    """A cache with the model as huggingface_hub writes it: links to blobs. Returns its snapshot."""
    repository = home / "hub" / "models--org--name"
    snapshot = repository / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    (repository / "blobs").mkdir()
    for i, file in enumerate(sorted(path for path in model.iterdir() if path.is_file())):
        shutil.copy(file, repository / "blobs" / str(i))
        (snapshot / file.name).symlink_to(Path("..", "..", "blobs", str(i)))
    return snapshot


@pytest.fixture(name="home")
def offline_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of the hub without a model, and no way out."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return tmp_path / "home"


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, env=env | environment, capture_output=True, text=True, check=False, timeout=300
    )


def test_a_name_is_found_in_the_cache_without_a_network(home: Path, demo_model: Path) -> None:
    snapshot = lay_out(home, demo_model)
    for name in (NAME, f"{NAME}@main", f"{NAME}@{COMMIT}"):
        assert resolve_model(name) == str(snapshot)
    assert resolve_model(NAME, revision="main") == str(snapshot)
    params = SamplingParams(temperature=0, max_tokens=8)
    texts = [
        LLM(model, num_threads=1, max_model_len=64)
        .generate("Once", params, use_tqdm=False)[0]
        .outputs[0]
        .text
        for model in (NAME, demo_model)
    ]
    assert texts[0] == texts[1]
    assert model_name(snapshot) == NAME
    config = EngineArgs(NAME, revision="main").create_engine_config()
    assert (config.model, config.revision) == (str(snapshot), "main")


def test_the_package_of_the_hub_is_not_imported_for_what_the_cache_has(home: Path, demo_model: Path) -> None:
    lay_out(home, demo_model)
    code = "import sys; sys.modules['huggingface_hub'] = None; " + GENERATE
    done = python(code, HF_HOME=str(home))
    assert done.returncode == 0, done.stderr
    absent = python(code.replace("org/name", "org/other"), HF_HOME=str(home))
    assert "pip install 'quire[hub]'" in absent.stderr.splitlines()[-1]
    imported = python(
        "import sys, quire; sys.exit('huggingface_hub' in sys.modules or 'quire.hub' in sys.modules)"
    )
    assert imported.returncode == 0


def test_a_directory_goes_before_a_name(
    home: Path, demo_model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lay_out(home, demo_model)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org" / "name").mkdir(parents=True)
    assert resolve_model(NAME) == NAME


def test_the_tokenizer_of_another_model(home: Path, copy: Path, demo_model: Path) -> None:
    snapshot = lay_out(home, demo_model)
    (copy / "tokenizer.json").unlink()
    llm = LLM(copy, tokenizer=NAME, num_threads=1, max_model_len=64)
    assert llm.get_tokenizer().encode("Once") == LLM(demo_model, num_threads=1).get_tokenizer().encode("Once")
    (copy / "tokenizer_config.json").unlink()
    (copy / "chat_template.jinja").unlink(missing_ok=True)
    assert "Hello" in llm.apply_chat_template([{"role": "user", "content": "Hello"}])
    directory, given = locate_model(NAME, {"tokenizer_revision": "main"})
    assert (directory, given["tokenizer"]) == (str(snapshot), str(snapshot))
    directory, given = locate_model(str(copy), {"tokenizer": str(demo_model)})
    assert (directory, given["tokenizer"]) == (str(copy), str(demo_model))


@pytest.mark.parametrize(
    ("model", "arguments", "said"),
    [
        (
            "org/other",
            {},
            r"model: no directory 'org/other', and the hub's cache does not have it; HF_HUB_OFFLINE",
        ),
        (NAME, {"revision": "v2"}, "does not have it; HF_HUB_OFFLINE"),
        (f"{NAME}@main", {"revision": "v2"}, "are not the same; give one of them"),
        (NAME, {"revision": "../x"}, "revision must be a branch, a tag or a commit"),
        ("other", {}, "a name on the hub like"),
        ("../org/name", {}, "no directory"),
        (NAME, {"trust_remote_code": True}, "no code of a checkpoint is run"),
        (NAME, {"hf_token": "secret"}, "hf_token is not supported: set HF_TOKEN"),
        (NAME, {"tokenizer": "org/other"}, "tokenizer: no directory 'org/other'"),
    ],
)
def test_what_cannot_be_had_is_said(
    home: Path, demo_model: Path, model: str, arguments: dict[str, object], said: str
) -> None:
    lay_out(home, demo_model)
    with pytest.raises(ValueError, match=said):
        LLM(model, num_threads=1, **arguments)


def test_arguments_are_refused_before_the_hub_is_asked(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def ask(*args: object, **_: object) -> str:
        raise AssertionError(f"the hub was asked for {args}")

    monkeypatch.setattr("quire.hub.download", ask)
    refused: list[tuple[dict[str, object], type[Exception], str]] = [
        ({"trust_remote_code": True}, ValueError, "trust_remote_code is not supported, got True"),
        ({"hf_token": "x"}, ValueError, "hf_token is not supported"),
        ({"revision": 5}, TypeError, "revision must be str, got 5"),
        ({"tokenizer": 5}, TypeError, "tokenizer must be a path, got 5"),
        ({"max_num_seqs": -1}, ValueError, "max_num_seqs must be between 1 and 4096, got -1"),
        ({"no_such_argument": 1}, TypeError, "no argument 'no_such_argument'"),
    ]
    for arguments, error, said in refused:
        for make in (LLM, lambda *args, **named: EngineArgs(*args, **named).create_engine_config()):
            with pytest.raises(error, match=said):
                make(NAME, **arguments)
    for command in (
        ["run", "--max-num-seqs", "-1", "Once"],
        ["run", "--temperature", "-1", "Once"],
        ["run"],
        ["chat", "--temperature", "-1"],
        ["plan", "--device-memory", "lots"],
    ):
        assert main([*command, "--model", NAME]) == 1
        assert capsys.readouterr().err.count("\n") == 1


def test_arguments_that_can_be_read_once_are_read_whole(demo_model: Path) -> None:
    args = EngineArgs(demo_model, plugins=(path for path in ["./a.so", "./b.so"]))
    assert args.create_engine_config().plugins == ["./a.so", "./b.so"]


def test_a_download_brings_the_files_that_are_needed(copy: Path, tmp_path: Path) -> None:
    more = {
        "pytorch_model.bin": b"x",
        "model.onnx": b"x",
        "README.md": b"x",
        "consolidated.safetensors": b"x",
    }
    with fake_hub(NAME, copy, **more) as hub:
        environment = {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(tmp_path / "home")}
        done = python(GENERATE, **environment)
        assert done.returncode == 0, done.stderr
        assert "Fetching" in done.stderr or "%" in done.stderr, "a progress bar"
        assert not set(more) & set(hub.fetched)
        assert {"config.json", "tokenizer.json", "model.safetensors"} <= set(hub.fetched)
        hub.asked.clear()
        again = python(GENERATE, **environment)
        assert again.returncode == 0, again.stderr
        assert not hub.asked, "the cache has it"
        other = python(GENERATE.replace("org/name", "org/name@v2"), **environment)
        assert "the hub has no such revision" in other.stderr.splitlines()[-1]
        none = python(GENERATE.replace("org/name", "org/other"), **environment)
        assert "the hub has no such model" in none.stderr.splitlines()[-1]
    gone = python(GENERATE.replace("org/name", "org/other"), **environment)
    assert "its download failed" in gone.stderr.splitlines()[-1]
    assert gone.stderr.splitlines()[-1].startswith("ValueError: model: no directory 'org/other'")


def test_a_download_that_was_cut_short_goes_on(copy: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    snapshot = lay_out(tmp_path, copy)
    shutil.move(tmp_path / "hub", cache)
    snapshot = cache / "models--org--name" / "snapshots" / COMMIT
    (snapshot / "model.safetensors").resolve().unlink()
    with fake_hub(NAME, copy) as hub:
        code = f"from quire import LLM; LLM({NAME!r}, download_dir={str(cache)!r}, {ENGINE})"
        done = python(code, HF_ENDPOINT=hub.endpoint, HF_HOME=str(tmp_path / "none"))
    assert done.returncode == 0, done.stderr
    assert (snapshot / "model.safetensors").exists()


def test_a_model_without_safetensors_is_refused(copy: Path, tmp_path: Path) -> None:
    (copy / "model.safetensors").unlink()
    with fake_hub(NAME, copy) as hub:
        done = python(GENERATE, HF_ENDPOINT=hub.endpoint, HF_HOME=str(tmp_path / "home"))
    assert "the hub gave no model.safetensors" in done.stderr.splitlines()[-1]


def test_the_command_takes_a_name(home: Path, demo_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    snapshot = lay_out(home, demo_model)
    arguments = ["--num-threads", "1", "--max-model-len", "64"]
    assert main(["run", "--model", f"{NAME}@main", *arguments, "Once"]) == 0
    assert main(["serve", "--model", NAME, "--revision", "main", "--dump-config"]) == 0
    assert f'model: "{snapshot}"' in capsys.readouterr().out
    assert main(["run", "--model", "org/other", *arguments, "Once"]) == 1
    said = capsys.readouterr().err
    assert "--model: model: no directory 'org/other'" in said and said.count("\n") == 1


def test_a_quantization_is_downloaded_alone_and_found_again(
    home: Path, demo_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(demo_model, tmp_path / "demo")
    write_gguf(tmp_path / "x.gguf", tmp_path / "demo", "llama", gguf.GGMLQuantizationType.Q8_0)
    (tmp_path / "repository").mkdir()
    (tmp_path / "repository" / "demo-Q8_0.gguf").write_bytes((tmp_path / "x.gguf").read_bytes())
    others = {"demo-Q4_K_M.gguf": b"", "demo-Q4_K.gguf": b""}
    with fake_hub(NAME, tmp_path / "repository", **others) as hub:
        environment = {"HF_HOME": str(home), "HF_ENDPOINT": hub.endpoint}
        done = python(GENERATE.replace("org/name", "org/name:q8_0"), **environment)
        assert done.returncode == 0, done.stderr
        assert hub.fetched == ["demo-Q8_0.gguf"]
        absent = python(GENERATE.replace("org/name", "org/name:Q6_K"), **environment)
        assert "no GGUF file of Q6_K; there are" in absent.stderr.splitlines()[-1]
    file = resolve_model(f"{NAME}:Q8_0@main")
    assert Path(file).name == "demo-Q8_0.gguf" and model_name(file) == NAME
    assert resolve_model(NAME) == file  # the cache has no other
    params = SamplingParams(temperature=0, max_tokens=8)
    texts = [
        LLM(model, num_threads=1, max_model_len=64)
        .generate("Once", params, use_tqdm=False)[0]
        .outputs[0]
        .text
        for model in (f"{NAME}:Q8_0", tmp_path / "x.gguf")
    ]
    assert texts[0] == texts[1]
