"""Writes the tables of docs/checkpoints.md: what a directory may hold, who reads it, and what tests it.

    .venv/bin/python tools/checkpoints_page.py [--check]

Names, types and architectures are those of the code's own lists; a row whose test is not there is an error.
What stands between the tables is written by hand. With ``--check`` nothing is written; the exit status says
whether the tables are what the code says.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

from quire.hub import TOKENIZER_FILES
from quire.torch_export import programs, sources

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "checkpoints.md"
ENGINE, EXPORT = "the engine", "`quire export`"
# Architectures of GGUF files that stand for more than one of ours, or less.
GGUF_NOTES = {"llama": " (Llama, Mistral; no experts)"}


@dataclass(frozen=True)
class Row:
    cells: tuple[str, ...]
    tests: tuple[str, ...]  # FILE::NAME, in tests/python


def source(file: str) -> str:
    return (ROOT / "cpp/src" / file).read_text()


def found(file: str, pattern: str, within: str = ".*") -> list[str]:
    """What the pattern finds in the part of a source that ``within`` matches; LookupError for nothing."""
    part = re.search(within, source(file), re.DOTALL)
    names = re.findall(pattern, part[0]) if part else []
    if not names:
        raise LookupError(f"cpp/src/{file} has no {pattern!r} in {within!r} any more")
    return names


def code(names: list[str] | tuple[str, ...], last: str = ", ") -> str:
    quoted = [f"`{name}`" for name in names]
    return quoted[0] if len(quoted) == 1 else ", ".join(quoted[:-1]) + last + quoted[-1]


def named(file: str, *names: str) -> str:
    """Of files that a source asks for by these names."""
    missing = [name for name in names if f'{name}"' not in source(file)]
    if missing:
        raise LookupError(f"cpp/src/{file} does not name {missing}")
    return code(names)


def floats() -> str:
    """Types of weights that are computed with as they are."""
    kinds = found("weights/checkpoint.cpp", r"DType::k(\w+)", r"bool is_float.*?\n}")
    return ", ".join(kind.lower() for kind in kinds)


def tokenizer_files() -> str:
    """In the order in which they are looked for."""
    asked = found(
        "tokenizer/tokenizer_directory.cpp", r'"/?([\w.]+\.\w+|\.tiktoken)"', r"> load_tokenizer\(.*"
    )
    names = [f"*{name}" if name.startswith(".") else name for name in dict.fromkeys(asked)]
    if absent := {*names} - {*TOKENIZER_FILES}:
        raise LookupError(f"quire.hub does not download {sorted(absent)}")
    return code(names)


def directory_rows() -> list[Row]:
    binary, safe = sources.WEIGHT_FILES
    single, index = (named("weights/checkpoint.cpp", safe + end) for end in ("", sources.INDEX_SUFFIX))
    keys = found("engine/generation_config.cpp", r'\{"(\w+)", ', r"kKeys\[\] = \{.*?\n\};")
    return [
        Row(
            (
                f"{single}, or shards and {index}",
                ENGINE,
                f"{floats()}; int8 as compressed-tensors stores it; GPT-OSS's experts in [MXFP4](#mxfp4)",
            ),
            (
                "test_logits_parity.py::test_sharded_and_half_precision_files_are_read",
                "test_quantized_weights.py::test_logits_are_those_of_the_weights_it_stands_for",
                "test_mxfp4.py::test_weights_are_transformers_bit_for_bit",
            ),
        ),
        Row(
            (
                "one `*.gguf`, or its parts",
                ENGINE,
                "[GGUF](#gguf): config, weights and tokenizer in one; its path is a model, too",
            ),
            ("test_gguf.py::test_a_split_file_is_read_from_its_first_part",),
        ),
        Row(
            ("`*.quire`", ENGINE, "[packed weights](#packed-weights), where some suit"),
            ("test_packing.py::test_a_packed_directory_answers_as_its_model",),
        ),
        Row(
            (
                f"`{binary}`, its shards and `{binary}{sources.INDEX_SUFFIX}`; any file of `torch.save`",
                EXPORT,
                "state dicts; a pickle with code in it is refused",
            ),
            (
                "test_export.py::test_state_dicts",
                "test_export.py::test_code_in_a_pickle_is_refused_and_not_run",
            ),
        ),
        Row(
            (
                f"`{sources.META_RANKS.replace('*', 'NN')}` and `{sources.META_PARAMS}`",
                EXPORT,
                "Meta's Llama; the ranks' parts are put together",
            ),
            ("test_export.py::test_metas_own_form",),
        ),
        Row(
            (
                f"`*{sources.PROGRAM_SUFFIX}`",
                EXPORT,
                f"archives of `torch.export`; recognised are {', '.join(programs.RECOGNISED)}",
            ),
            (
                "test_export_programs.py::test_torch_export",
                "test_export_archives.py::test_code_in_an_archive_is_refused_and_not_run",
            ),
        ),
        Row(
            ("`config.json`", "all", "the architecture: [those that there are](models.md)"),
            ("test_published_configs.py::test_it_has_as_many_parameters_as_in_transformers",),
        ),
        Row(
            (
                named("engine/generation_config.cpp", "generation_config.json"),
                ENGINE,
                f"defaults of requests: {code(keys)}; and `eos_token_id`",
            ),
            ("test_default_sampling_params.py::test_calls_without_parameters_take_the_models",),
        ),
        Row(
            (tokenizer_files(), ENGINE, "[the tokenizer](tokenizers.md): the first that is there"),
            (
                "test_tokenizer_directories.py::test_ids_equal_sentencepiece",
                "test_tokenizer_directories.py::test_ids_equal_tiktoken",
                "test_tokenizer_directories.py::test_tekken",
                "test_tokenizer_directories.py::test_vocab_and_merges",
            ),
        ),
        Row(
            (
                named(
                    "chat/chat_template.cpp", "chat_template.jinja", "tool_use.jinja", "tokenizer_config.json"
                ),
                ENGINE,
                "the chat template, and special tokens",
            ),
            ("test_chat_template.py::test_templates_are_chosen_by_name_and_by_file",),
        ),
    ]


def gguf_rows() -> list[Row]:
    versions = found("formats/gguf.cpp", r"version != (\d+)")
    architectures = found("formats/gguf_config.cpp", r'\{"(\w+)", "\w+"\}', r"kArchitectures = \{.*?;")
    types = found("formats/gguf_dequantize.cpp", r'GgmlType::\w+, "(\w+)"', r"kTypes = \{.*?;")
    models = found("tokenizer/gguf_tokenizer.cpp", r'model == "([\w-]+)"')
    splits = found("tokenizer/gguf_tokenizer.cpp", r'\{"([\w-]+)", \{\{', r"kKnown = \{.*?\n  \};")
    noted = [f"`{name}`{GGUF_NOTES.get(name, '')}" for name in architectures]
    return [
        Row(
            ("versions", f"{' and '.join(versions)}, little-endian"),
            ("test_gguf.py::test_version_2_is_read",),
        ),
        Row(
            ("`general.architecture`", ", ".join(noted)),
            ("test_gguf.py::test_each_architecture_computes_what_its_directory_does",),
        ),
        Row(
            ("types of tensors", f"{', '.join(types)}; others are refused by name"),
            ("test_gguf.py::test_values_are_bit_for_bit_those_of_the_gguf_package",),
        ),
        Row(
            ("`tokenizer.ggml.model`", code(models)),
            ("test_gguf_tokenizer.py::test_a_sentencepiece_model_splits_as_its_own_library_does",),
        ),
        Row(
            ("`tokenizer.ggml.pre`", f"{code(splits)}; others, and files without it, are refused"),
            (
                "test_gguf_tokenizer.py::test_text_is_split_as_the_family_does",
                "test_gguf_tokenizer.py::test_a_split_that_is_not_known_is_refused",
            ),
        ),
    ]


def links(row: Row) -> str:
    """To the files of a row's tests. Raises LookupError for a test that is not there."""
    for test in row.tests:
        file, name = test.split("::")
        if f"\ndef {name}(" not in (ROOT / "tests/python" / file).read_text():
            raise LookupError(f"tests/python has no {test}")
    files = dict.fromkeys(test.split("::")[0] for test in row.tests)
    return ", ".join(f"[{file[5:-3]}](../tests/python/{file})" for file in files)


def line(cells: tuple[str, ...]) -> str:
    return "".join(f"| {cell} " if cell else "| " for cell in cells) + "|\n"


def table(head: tuple[str, ...], rows: list[Row]) -> str:
    body = "".join(line((*row.cells, links(row))) for row in rows)
    return line((*head, "tests")) + "|---" * (len(head) + 1) + "|\n" + body


def page(text: str) -> str:
    """With its tables anew, each between two comments of its name."""
    tables = {
        "directory": table(("in the directory", "read by", ""), directory_rows()),
        "gguf": table(("", ""), gguf_rows()),
    }
    for name, content in tables.items():
        begin, end = f"<!-- {name}: tools/checkpoints_page.py -->\n\n", f"\n<!-- {name} ends -->"
        if begin not in text or end not in text:
            raise LookupError(f"{PAGE} has no place for the table {name!r}")
        text = text[: text.index(begin) + len(begin)] + content + text[text.index(end) :]
    return text


def main() -> None:
    text = PAGE.read_text()
    if sys.argv[1:] != ["--check"]:
        PAGE.write_text(page(text))
    elif text != page(text):
        sys.exit(f"{PAGE} is not what the code says: run {sys.argv[0]}")


if __name__ == "__main__":
    main()
