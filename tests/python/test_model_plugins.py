"""Libraries of models that engines load: docs/adding_a_model.md's example, and what is wrong with others."""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from logits_parity import NUM_TOKENS, Logits, reference, token_ids
from model_plugins import built_plugins, cohere, run, write_cohere
from quire import LLM, EngineConfig, ModelRegistry, SamplingParams, load_plugin, pack_weights, plan
from quire.config import dump_config, make_engine_config
from quire.plugins import library_paths

NAME = "CohereForCausalLM"


@pytest.fixture(scope="session")
def plugins(build_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_plugins(build_dir, tmp_path_factory)


@pytest.fixture(scope="session")
def library(plugins: Path) -> Path:
    return plugins / "libcohere.so"


@pytest.fixture(scope="session")
def model(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_cohere(tmp_path_factory.mktemp("cohere"), demo_model)


def logprobs(model: Path, config: Any, **engine: Any) -> Logits:
    """Of every token of the vocabulary, at each position but the last."""
    llm = LLM(model, skip_tokenizer_init=True, max_logprobs=-1, dtype="float32", **engine)
    params = SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=-1, detokenize=False)
    found = llm.generate([token_ids(config)], params, use_tqdm=False)[0].prompt_logprobs
    assert found is not None
    rows = [[row[i].logprob for i in range(config.vocab_size)] for row in found[1:] if row is not None]
    return np.array(rows, np.float32)


@pytest.mark.parametrize("tied", [False, True])
def test_its_logits_equal_transformers(tied: bool, make_model: Callable[..., Path], library: Path) -> None:
    config = cohere(tie_word_embeddings=tied)
    directory = make_model(config)
    expected = torch.log_softmax(torch.from_numpy(reference(directory, config)), -1).numpy()[:-1]
    whole = logprobs(directory, config, plugins=[library])
    assert whole.shape == (NUM_TOKENS - 1, config.vocab_size)
    assert np.abs(whole - expected).max() < 2e-3  # of logits of about 9
    chunked = logprobs(directory, config, plugins=str(library), max_num_batched_tokens=37, max_num_seqs=1)
    np.testing.assert_array_equal(chunked, whole)
    ranks = logprobs(directory, config, plugins=[library], tensor_parallel_size=2)
    assert np.abs(ranks - whole).max() < 1e-3


def quire(*arguments: str | Path, **environment: str) -> str:
    return run(sys.executable, "-m", "quire", *arguments, **environment)


def refused(*arguments: str | Path, **environment: str) -> str:
    """What a command prints that fails."""
    command = [sys.executable, "-m", "quire", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | environment)
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stderr


PROMPT = ["--raw", "Once upon a time", "--max-tokens", "8"]


def test_commands_take_it(model: Path, library: Path, tmp_path: Path) -> None:
    answer = LLM(model, plugins=[library]).generate(
        "Once upon a time", SamplingParams(max_tokens=8, temperature=0), use_tqdm=False
    )[0]
    text = answer.outputs[0].text + "\n"
    assert quire("run", "--model", model, "--plugin", library, *PROMPT) == text
    file = tmp_path / "engine.yaml"
    file.write_text(f"plugins: [{json.dumps(str(library))}]\n")
    assert quire("run", "--model", model, "--config", file, *PROMPT) == text
    assert quire("run", "--model", model, *PROMPT, QUIRE_PLUGINS=str(library)) == text
    planned = json.loads(quire("plan", model, "--json", "--plugin", library))
    assert planned["architecture"] == NAME and planned["fits"]
    quire("export", model, tmp_path / "packed", "--packed", "--plugin", library)
    assert quire("run", "--model", tmp_path / "packed", "--plugin", library, *PROMPT) == text

    without = refused("run", "--model", model, *PROMPT)
    assert f"architecture '{NAME}' is not supported; supported: " in without
    assert re.search(
        r"; the nearest are (\w+ForCausalLM, ){2}\w+ForCausalLM; a library in 'plugins' may", without
    )


def test_python_takes_it(model: Path, library: Path, tmp_path: Path) -> None:
    assert plan(model, plugins=library)["architecture"] == NAME
    assert pack_weights(model, tmp_path / "packed", plugins=[library])
    assert load_plugin(library) == [NAME]
    assert NAME in ModelRegistry.get_supported_archs() == sorted(ModelRegistry.get_supported_archs())
    config = EngineConfig(model, plugins=[library, f"{library.parent}/./libcohere.so"])
    assert LLM.from_config(config).model.architecture == NAME


def test_a_path_object_is_one_and_a_string_stays_as_it_is(tmp_path: Path) -> None:
    assert library_paths(Path("libcohere.so")) == [str(Path.cwd() / "libcohere.so")]
    assert library_paths(["./a.so", tmp_path]) == ["./a.so", str(tmp_path)]
    assert EngineConfig("m", plugins=None).plugins == []
    wrong: Any = 7
    with pytest.raises(TypeError, match=r"plugins must be the path of a library, or a list of them, got 7"):
        EngineConfig("m", plugins=wrong)
    with pytest.raises(TypeError, match=r"plugins must be a path, got 7"):
        EngineConfig("m", plugins=["./a.so", wrong])


def test_an_error_names_the_nearest_of_all_that_are_known(copy: Path, library: Path) -> None:
    load_plugin(library)
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"architectures": ["CohereForCasualLM"]}))
    nearest = (
        rf"'CohereForCasualLM' is not supported; .*the nearest are {NAME}, \w+, \w+; a library in .plugins."
    )
    with pytest.raises(ValueError, match=nearest):
        LLM(copy)


def test_a_checkpoint_names_no_library(copy: Path, plugins: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does what lies beside it, whatever it is called."""
    monkeypatch.setenv("ODD_PLUGIN", "good")
    shutil.copy(plugins / "libodd.so", copy / "libodd.so")
    config = json.loads((copy / "config.json").read_text())
    named = {"plugins": [str(copy / "libodd.so")], "auto_map": {"AutoModelForCausalLM": "libodd.so"}}
    (copy / "config.json").write_text(json.dumps(config | named))
    LLM(copy, skip_tokenizer_init=True)
    assert "OddForCausalLM" not in ModelRegistry.get_supported_archs()


@pytest.mark.parametrize(
    ("what", "why"),
    [
        ("throws", "the licence has expired"),
        ("throws an int", "it threw what is no std::exception"),
        ("has no name", "model '' needs a name and a factory"),
        ("has no factory", "model 'OddForCausalLM' needs a name and a factory"),
        ("twice", "it registers 'OddForCausalLM' twice"),
        ("llama", "it registers 'LlamaForCausalLM', which Quire has already; give it another name"),
        ("nothing", "it registers no model"),
    ],
)
def test_what_a_library_may_not_do(
    what: str, why: str, plugins: Path, demo_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ODD_PLUGIN", what)
    path = plugins / "libodd.so"
    with pytest.raises(ValueError, match=re.escape(f"plugins: cannot load '{path}': {why}")):
        LLM(demo_model, plugins=[path])
    assert "OddForCausalLM" not in ModelRegistry.get_supported_archs()


def compiled(code: str, directory: Path) -> Path:
    source, path = directory / "other.c", directory / "libother.so"
    source.write_text(code)
    run(os.environ.get("CC", "cc"), "-shared", "-fPIC", "-o", path, source)
    return path


OTHER_VERSION = "const unsigned long quire_model_plugin[3] = {1, 0, 0};"
UNLINKED = "extern int quire_somewhere; int *get(void) { return &quire_somewhere; }"


@pytest.mark.parametrize(
    ("code", "why"),
    [
        (
            "int answer = 42;",
            "it exports no 'quire_model_plugin'; end one of its files in QUIRE_MODEL_PLUGIN",
        ),
        (OTHER_VERSION, "it was built against another version of Quire; build it against this one, "),
        (
            UNLINKED,
            "undefined symbol: quire_somewhere; it was built against another version of Quire, or not",
        ),
    ],
)
def test_other_libraries_are_none(code: str, why: str, tmp_path: Path) -> None:
    path = compiled(code, tmp_path)
    with pytest.raises(ValueError, match=rf"plugins: cannot load '{path}': .*{re.escape(why)}"):
        load_plugin(path)


def test_a_library_of_another_copy_of_quire_is_refused(plugins: Path, tmp_path: Path) -> None:
    """Which would look for models where this one does not: an address of the library's own stands for it."""
    version = ctypes.c_uint64.in_dll(ctypes.CDLL(str(plugins / "libodd.so")), "quire_model_plugin").value
    code = f"static char other; const void *quire_model_plugin[] = {{(void *){version}ul, &other, 0}};"
    path = compiled(code, tmp_path)
    with pytest.raises(ValueError, match=rf"linked to another copy of Quire, {path}, not to /.*libquire"):
        load_plugin(path)


def test_what_is_no_library(tmp_path: Path, demo_model: Path) -> None:
    missing, text = tmp_path / "libnone.so", tmp_path / "text.so"
    text.write_text("no library")
    for path, why in [
        (missing, "No such file or directory"),
        (text, "file too short"),
        (tmp_path, "Is a directory"),
    ]:
        with pytest.raises(ValueError, match=rf"plugins: cannot load '{path}': .*{why}"):
            LLM(demo_model, plugins=[path])
    with pytest.raises(
        ValueError, match=r"plugins: 'libcohere\.so' is no path of a library: .* like './libcohere\.so'"
    ):
        LLM(demo_model, plugins=["libcohere.so"])
    with pytest.raises(ValueError, match="plugins: '' is no path of a library"):
        load_plugin("")
    with pytest.raises(ValueError, match="plugins holds an empty string"):
        LLM(demo_model, plugins="")
    with pytest.raises(ValueError, match="holds a NUL character"):
        LLM(demo_model, plugins="./a.so\0b")
    assert "plugins: cannot load" in refused("plan", demo_model, "--plugin", missing)


@pytest.mark.parametrize("value", [None, 3, ["./libmodels.so"], b"./libmodels.so"])
def test_a_path_is_one(value: Any) -> None:
    with pytest.raises(TypeError, match="path must be the path of a library, got"):
        load_plugin(value)


def test_a_second_library_of_a_name_is_refused(library: Path, tmp_path: Path) -> None:
    load_plugin(library)
    other = tmp_path / "libother.so"
    shutil.copy(library, other)
    with pytest.raises(ValueError, match=rf"registers '{NAME}', which is there already, from '.*libcohere"):
        load_plugin(other)
    link = tmp_path / "link.so"
    link.symlink_to(library)
    assert load_plugin(link) == [NAME]  # the same one


def test_a_model_that_is_none(
    copy: Path, plugins: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ODD_PLUGIN", "good")
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"architectures": ["OddForCausalLM"]}))
    code = f"""
import quire, threading
names = []
threads = [
    threading.Thread(target=lambda: names.append(quire.load_plugin({str(plugins / "libodd.so")!r})))
    for _ in range(8)
]
for one in threads: one.start()
for one in threads: one.join()
assert names == [["OddForCausalLM"]] * 8, names
try:
    quire.LLM({str(copy)!r})
except ValueError as error:
    print(error)
"""
    assert "architecture 'OddForCausalLM': its plugin made no model" in run(sys.executable, "-c", code)


def installed(directory: Path, name: str, **functions: str) -> Path:
    """A distribution as pip leaves it, with an entry point for each function's body."""
    (directory / f"{name}.py").write_text(
        "".join(f"def {function}():\n    {body}\n" for function, body in functions.items())
    )
    info = directory / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    points = "".join(f"{function} = {name}:{function}\n" for function in functions)
    (info / "entry_points.txt").write_text(f"[quire.plugins]\n{points}")
    return directory


def test_entry_points_bring_plugins(model: Path, library: Path, plugins: Path, tmp_path: Path) -> None:
    packages = installed(
        tmp_path,
        "some_models",
        cohere=f"print('called'); return {str(library)!r}",
        empty="return None",
        broken="raise RuntimeError('no licence')",
    )
    path = {"PYTHONPATH": str(packages)}
    code = f"""
import sys, warnings
import quire
assert "importlib.metadata" not in sys.modules
warnings.simplefilter("error" if {{quiet}} else "default")
for _ in range(2):
    print(quire.LLM({str(model)!r}).model.architecture)
"""
    done = subprocess.run(
        [sys.executable, "-c", code.format(quiet=False)],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | path,
    )
    assert done.stdout.split() == ["called", NAME, NAME]
    assert "plugin 'broken' (some_models:broken) failed: no licence; its models are not" in done.stderr
    named = path | {"QUIRE_PLUGINS": "cohere"}
    assert run(sys.executable, "-c", code.format(quiet=True), **named).split() == ["called", NAME, NAME]
    planned = quire("plan", model, **path, QUIRE_PLUGINS="cohere,empty")
    assert NAME in planned
    assert "is not supported" in refused("plan", model, **path, QUIRE_PLUGINS="empty")
    assert "is not supported" in refused("plan", model, **path, QUIRE_PLUGINS="")
    assert "QUIRE_PLUGINS: plugin 'broken' (some_models:broken) failed: no licence" in refused(
        "plan", model, **path, QUIRE_PLUGINS="broken"
    )
    assert (
        "QUIRE_PLUGINS has 'coherent', which is neither the path of a library, with a '/', nor an entry "
        "point of the group 'quire.plugins'; there are: broken, cohere, empty"
    ) in refused("plan", model, **path, QUIRE_PLUGINS="coherent")


def test_flags_add_up_and_names_are_no_paths() -> None:
    from quire.cli import _parser

    args = _parser().parse_args(["run", "--plugin", "./a.so", "--plugin", "./b.so", "prompt"])
    config = make_engine_config(args, environ={"QUIRE_PLUGINS": "./c.so,name"}, model="quire-demo")
    assert config.plugins == ["./a.so", "./b.so"] and args.prompt == "prompt"
    assert 'plugins: ["./a.so", "./b.so"]' in dump_config(config)
    config = make_engine_config(environ={"QUIRE_PLUGINS": "./c.so,name"}, model="quire-demo")
    assert config.plugins == ["./c.so"]


def test_many_threads_load_one(library: Path) -> None:
    found: list[list[str]] = []
    threads = [threading.Thread(target=lambda: found.append(load_plugin(library))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [[NAME]] * 8


# ---- what plugins are built with ----


def symbols(*arguments: str | Path) -> list[tuple[str, str]]:
    """Kinds and names, as nm has them."""
    listing = run("nm", "-C", *arguments)
    return [(found[1], found[2]) for found in re.findall(r"^(\w*) *(\w) (.*)$", listing, re.MULTILINE)]


def test_installed_headers_need_no_others(plugins: Path, tmp_path: Path) -> None:
    include = plugins.parent / "installed" / "include"
    headers = sorted((include / "quire_models").rglob("*.h"))
    assert len(headers) > 40
    source = tmp_path / "all.cpp"
    source.write_text("".join(f'#include "{one.relative_to(include / "quire_models")}"\n' for one in headers))
    flags = ["-std=c++20", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", '-DQUIRE_VERSION="0"']
    compiler = os.environ.get("CXX", "c++")
    run(compiler, *flags, f"-I{include}", f"-I{include / 'quire_models'}", source)


def test_what_installed_headers_declare_is_in_the_library(build_dir: Path, plugins: Path) -> None:
    """Functions that are compiled once, not where they are used, are T in the objects: all are exported."""
    installed = plugins.parent / "installed"
    exported = {name for _, name in symbols("-D", "--defined-only", next(installed.rglob("libquire.so")))}
    text = "".join(
        header.read_text()
        for header in (installed / "include" / "quire_models").rglob("*.h")
        if "kernels" not in header.parts
    )
    classes = set(re.findall(r"^(?:class|struct) (\w+)[^;]*$", text, re.MULTILINE))
    functions = set(re.findall(r"^[\w:<>\[\]][\w:<>,\[\] *&]* [*&]?(\w+)\(", text, re.MULTILINE))
    assert {"Linear", "CausalLM", "HfConfig"} <= classes
    assert {"layer_name", "read_activation", "fail_check", "alibi_slopes"} <= functions
    rooms = ("device", "distributed", "formats", "layers", "models", "util", "weights")
    objects = [file for room in rooms for file in (build_dir / "cpp" / "src" / room).rglob("*.o")]
    declared = set()
    for kind, name in symbols("--defined-only", *objects):
        owner = re.match(r"quire::(\w+)(::|\(|\[)", name)
        if kind == "T" and owner and owner[1] in (functions if owner[2] != "::" else classes):
            declared.add(name)
    assert len(declared) > 100
    assert not declared - exported
