"""Flags, environment variables and files for each field of the engine's configuration; few are named."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from quire import EngineConfig, _core
from quire.config import (
    FlexibleArgumentParser,
    add_engine_config_arguments,
    dump_config,
    make_engine_config,
)
from quire.config_fields import engine_config_fields, environment_name, flag_name

FIELDS: list[dict[str, Any]] = _core.engine_config_fields()
# Values that a loop cannot make up.
SAMPLES: dict[str, Any] = {
    "tokenizer": None,
    "model": None,
    "device": "cpu",
    "flight_recorder_signal": 12,
    "flight_recorder_bytes": 1 << 20,
    "flight_recorder_dir": None,
    "generation_config": "vllm",
    "plugins": ["./a.so", "/b c.so"],
    "override_generation_config": {"temperature": 0.5},
}


def sample(field: dict[str, Any], directory: Path) -> Any:
    """A value that is not the default."""
    if field["name"] in SAMPLES:
        value = SAMPLES[field["name"]]
        return str(directory) if value is None else value
    if field["one_of"]:
        value = field["one_of"].split()[-1]
        return int(value) if field["type"] == "int" else value
    default = field["default"]
    match field["type"].removesuffix(" | None"):
        case "bool":
            return not default
        case "int":
            return (default or 0) + 3
        case "float":
            return default / 2 + 0.25
        case "list[int]":
            return [4, 5]
        case "list[str]":
            return ["a", "b c"]
    return "a: 'b' # c"


def others(field: dict[str, Any]) -> dict[str, Any]:
    """What has to be there too."""
    pairs = {"think_start_token_ids": "think_end_token_ids", "think_end_token_ids": "think_start_token_ids"}
    return {pairs[field["name"]]: [7]} if field["name"] in pairs else {}


def parser(**kwargs: Any) -> argparse.ArgumentParser:
    made = FlexibleArgumentParser(exit_on_error=False)
    made.add_argument("--max-tokens", type=int, default=5)
    made.add_argument("--raw", action="store_true")
    add_engine_config_arguments(made, **kwargs)
    return made


def make(
    *args: str, environ: dict[str, str] | None = None, model: str = "quire-demo", **others: Any
) -> EngineConfig:
    return make_engine_config(parser().parse_args(args), environ=environ or {}, model=model, **others)


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: field["name"])
def test_a_field_is_a_flag_a_variable_and_a_key_and_comes_back_from_a_dump(
    field: dict[str, Any], tmp_path: Path
) -> None:
    name, value = field["name"], sample(field, tmp_path)
    text = value if isinstance(value, str) else json.dumps(value)
    expected = make_engine_config(environ={}, **{"model": "quire-demo", **others(field), name: value})
    assert getattr(expected, name) == value != field["default"]
    if field["type"].startswith("bool"):
        flag = [flag_name(name) if value else "--no-" + flag_name(name)[2:]]
    elif field["type"].startswith("list"):
        flag = [flag_name(name), *map(str, value)]
    else:
        flag = [f"{flag_name(name)}={text}"]
    by_underscore = [flag[0].partition("=")[0].replace("-", "_").replace("__", "--", 1), *flag[1:]]
    if "=" in flag[0]:
        by_underscore[0] += "=" + flag[0].partition("=")[2]
    in_file = tmp_path / "engine.yaml"
    in_file.write_text(f"{name.replace('_', '-')}: {json.dumps(value)}\n")
    for made in (
        make(*flag, **others(field)),
        make(*by_underscore, **others(field)),
        make(environ={environment_name(name): text}, **others(field)),
        make("--config", str(in_file), **others(field)),
    ):
        assert getattr(made, name) == getattr(expected, name)
    dump = tmp_path / "dump.yaml"
    dump.write_text(dump_config(expected))
    again = make("--config", str(dump))
    if field["is_secret"]:
        assert text not in dump.read_text()
        assert f"# {name.replace('_', '-')} is set, and not shown" in dump.read_text()
    else:
        assert all(getattr(again, f["name"]) == getattr(expected, f["name"]) for f in FIELDS)


def test_a_flag_goes_before_a_variable_before_the_file_before_the_default(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("max-num-seqs: 3\nmax_num_batched_tokens: 64\nblock-size: 32\n")
    environ = {"QUIRE_MAX_NUM_SEQS": "4", "QUIRE_MAX_NUM_BATCHED_TOKENS": "65", "HOME": "x", "QUIRE_SEED": ""}
    config = make("--config", str(file), "--max-num-seqs", "5", environ=environ)
    assert (config.max_num_seqs, config.max_num_batched_tokens, config.block_size) == (5, 65, 32)
    assert config.max_logprobs == engine_config_fields()["max_logprobs"]["default"]
    assert config.seed is None


def test_numbers_as_vllm_writes_them() -> None:
    assert make("--max-model-len", "1k").max_model_len == 1000
    assert make("--max-model-len=2K").max_model_len == 2048
    assert make("--max-model-len=1.5k").max_model_len == 1500
    assert make("--kv-cache-memory-bytes", "4G").kv_cache_memory_bytes == 4 << 30


def test_the_file_sets_the_parsers_other_options_too(tmp_path: Path) -> None:
    file = tmp_path / "c.json"
    file.write_text(json.dumps({"max-tokens": 9, "raw": True, "max_num_seqs": "3", "seed": None}))
    made = parser()
    args = made.parse_args(["--config", str(file)])
    assert (args.max_tokens, args.raw) == (9, True)
    assert make_engine_config(args, environ={}, model="quire-demo").max_num_seqs == 3
    assert parser().parse_args(["--config", str(file), "--max-tokens", "2"]).max_tokens == 2


def refused(text: str, *args: str, kind: type[Exception] = ValueError, **kwargs: Any) -> None:
    with pytest.raises((kind, argparse.ArgumentError)) as error:
        make(*args, **kwargs)
    assert text in str(error.value)
    assert "\n" not in str(error.value)


def test_what_is_wrong_is_named_with_its_source(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"

    def by_file(content: str, text: str, kind: type[Exception] = ValueError) -> None:
        file.write_text(content)
        refused(text, "--config", str(file), kind=kind)

    refused("--max-num-seqs: max_num_seqs must be between 1 and 4096, got 0", "--max-num-seqs", "0")
    refused('max_num_seqs must be an integer from -2147483648 to 2147483647, got "x"', "--max-num-seqs=x")
    environ = {"QUIRE_BLOCK_SIZE": "17"}
    refused("QUIRE_BLOCK_SIZE in the environment: block_size must be 16, 32 or 64, got 17", environ=environ)
    environ = {"QUIRE_ENFORCE_EAGER": "maybe"}
    refused("QUIRE_ENFORCE_EAGER in the environment: enforce_eager must be true or false", environ=environ)
    environ = {"QUIRE_MAX_MODEL_LENS": "1"}
    refused("QUIRE_MAX_MODEL_LENS in the environment: no field has that name; did you mean", environ=environ)
    assert make(environ={"QUIRE_TESTS": "full", "QUIRE_BUILD_DIR": "x"}).max_num_seqs is None
    by_file("dtype: int4\n", f"{file}: dtype must be 'auto', 'float32', 'bfloat16' or 'float16', got 'int4'")
    by_file("max-num-seq: 1\n", f"{file}: 'max-num-seq' is not an option; did you mean 'max-num-seqs'?")
    by_file("max-num-seqs: [1]\n", f"{file}: max_num_seqs must be int", kind=TypeError)
    by_file("max-tokens: many\n", f"{file}: --max-tokens must be a valid int, got 'many'")
    by_file("raw: 3\n", f"{file}: --raw must be true or false, got 3")
    by_file("- a\n", "must be a mapping of options to values")
    by_file("a: [\n", str(file))
    refused("config: cannot read", "--config", str(tmp_path / "none.yaml"))
    with pytest.raises(ValueError, match="model is missing"):
        make_engine_config(environ={})


def test_an_option_that_is_not_known_is_told_of_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    main = FlexibleArgumentParser(prog="main")
    add_engine_config_arguments(main.add_subparsers().add_parser("go"))
    for option, said in (
        ("--max-num-sqes", "did you mean --max-num-seqs?"),
        ("--trust_remote_code", "vLLM's; leave it out: no code of a checkpoint is run"),
        ("--xyz", "unrecognized arguments: --xyz; see"),
    ):
        with pytest.raises(SystemExit):
            main.parse_args(["go", option])
        assert said in capsys.readouterr().err


def test_a_file_may_have_options_of_vllms_that_ask_for_nothing(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("trust-remote-code: false\ndownload-dir: /models\nquantization: null\nmax-num-seqs: 3\n")
    assert make("--config", str(file)).max_num_seqs == 3
    file.write_text("quantization: awq\n")
    refused(f"{file}: quantization is not supported, got 'awq' (str): weights are", "--config", str(file))


def test_a_file_without_pyyaml_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("max-num-seqs: 3\n")
    monkeypatch.setitem(sys.modules, "yaml", None)
    refused("takes PyYAML, which is not installed: pip install pyyaml", "--config", str(file))


def test_the_command_dumps_what_it_can_be_fed(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "quire", "run", "--dump-config"]
    first = subprocess.run(
        [*command, "--max_num_seqs", "3"], capture_output=True, text=True, check=True, timeout=60
    )
    assert "max-num-seqs: 3\n" in first.stdout
    file = tmp_path / "c.yaml"
    file.write_text(first.stdout)
    again = subprocess.run(
        [*command, "--config", file], capture_output=True, text=True, check=True, timeout=60
    )
    assert again.stdout == first.stdout


def test_help_of_the_command_reads_no_table_and_imports_little() -> None:
    code = (
        "import sys; from quire.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "from quire.config_fields import engine_config_fields\n"
        "assert engine_config_fields.cache_info().currsize == 0\n"
        "assert not {'numpy', 'yaml', 'torch'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=60)
