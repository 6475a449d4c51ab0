"""What is no file, and what would take all memory or time: refused before it does."""

from __future__ import annotations

import os
import re
import stat
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny_directories import (
    GENERATION,
    INDEX,
    TOKENIZER,
    TOKENIZER_CONFIG,
    WEIGHTS,
    Damage,
    chat,
    encode,
    encode_long,
    export,
    header,
    index,
    instead,
    load,
    load_gguf,
    plan,
    refusal,
    remove,
    sections,
    sparse,
    split,
    tekken,
    tokenize,
    write,
)

Door = Callable[[Path], object]

NO_FILES: dict[str, Callable[[Path], object]] = {
    "fifo": os.mkfifo,
    "socket": lambda path: os.mknod(path, stat.S_IFSOCK | 0o600),
    "directory": Path.mkdir,
    "endless": lambda path: path.symlink_to("/dev/zero"),
}
PLACES: list[tuple[str, Door, Damage]] = [
    ("config.json", plan, remove("config.json")),
    (WEIGHTS, plan, remove(WEIGHTS)),
    (INDEX, plan, remove(WEIGHTS)),
    ("x.quire", load, id),
    (GENERATION, load, remove(GENERATION)),
    (TOKENIZER, tokenize, remove(TOKENIZER)),
    ("tekken.json", tokenize, remove(TOKENIZER)),
    ("tokenizer.model", tokenize, remove(TOKENIZER)),
    ("gpt2.tiktoken", tokenize, remove(TOKENIZER)),
    ("vocab.json", tokenize, instead({"merges.txt": ""})),
    ("merges.txt", tokenize, instead({"vocab.json": "{}"})),
    (TOKENIZER_CONFIG, chat, remove(TOKENIZER_CONFIG)),
    ("chat_template.jinja", chat, id),
    (
        "additional_chat_templates/tool_use.jinja",
        chat,
        lambda model: (model / "additional_chat_templates").mkdir(),
    ),
    ("pytorch_model.bin", export, remove(WEIGHTS)),
    ("pytorch_model.bin.index.json", export, remove(WEIGHTS)),
    ("config.json", export, remove("config.json")),
    (GENERATION, export, remove(GENERATION)),
    (WEIGHTS, export, remove(WEIGHTS)),
]


@pytest.mark.parametrize("kind", NO_FILES)
@pytest.mark.parametrize(
    ("name", "door", "prepare"), PLACES, ids=[f"{row[1].__name__}-{row[0]}" for row in PLACES]
)
def test_what_is_no_file_is_not_waited_for(
    tiny_model: Path, name: str, door: Door, prepare: Damage, kind: str
) -> None:
    prepare(tiny_model)
    NO_FILES[kind](tiny_model / name)
    said = refusal(tiny_model, door)
    assert re.fullmatch(f"{re.escape(name)}: (is not a file|No such device or address)", said)


DEEP = b"[" * 10_000_000
STEPS = "the split pattern of the tokenizer takes too many steps on this text"
GROWS = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
LONG = {"type": "Replace", "pattern": {"String": "a"}, "content": "b" * (8 << 20)}
DOUBLED = "{% set ns = namespace(x='a') %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}"
BOMBS: list[tuple[Damage, Door, str]] = [
    (write("config.json", DEEP), plan, "config.json: nested more than 200 deep"),
    (write(GENERATION, DEEP), load, f"{GENERATION}: nested more than 200 deep"),
    (write(TOKENIZER, DEEP), tokenize, f"{TOKENIZER}: nested more than 200 deep"),
    (write(TOKENIZER_CONFIG, DEEP), chat, f"{TOKENIZER_CONFIG}: nested more than 200 deep"),
    (index(DEEP), plan, f"{INDEX}: nested more than 200 deep"),
    (header(lambda names: DEEP), plan, f"{WEIGHTS}: the header: nested more than 200 deep"),
    (write("config.json", '{"a": [' + "[]," * 16_000_000 + "1]}"), plan, "config.json: has 48000010 bytes"),
    (
        header(
            lambda names: names.update(
                {f"t{i}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for i in range(100_000)}
            )
        ),
        load,
        ".*no place for tensor 't",
    ),
    (sparse("config.json"), plan, f"config.json: has {1 << 40} bytes, more than"),
    (sparse(WEIGHTS, struct.pack("<Q", 1 << 39)), plan, f"{WEIGHTS}: the header claims {1 << 39} bytes"),
    (
        sparse("x.quire", b"QUIREPAK" + struct.pack("<Q", 1 << 39)),
        load,
        f"x.quire: the header claims {1 << 39}",
    ),
    (
        sparse("x.gguf", b"GGUF" + struct.pack("<IQQ", 3, 1 << 40, 1)),
        load_gguf,
        f"x.gguf: claims {1 << 40} tensors",
    ),
    (
        sections(normalizer={"type": "Sequence", "normalizers": [GROWS] * 32}),
        encode,
        "a text of .* grows to more",
    ),
    (sections(normalizer=LONG), encode, "a text of .* grows to more than"),
    (
        sections(decoder={"type": "Sequence", "decoders": [GROWS] * 32}),
        tokenize,
        f"{TOKENIZER}: decoder is not read: the decoder makes a token longer",
    ),
    # Each piece of 17 characters takes few steps; they are many.
    (split("a{17}", "(a|a)*b"), encode_long, STEPS),
    (split("(a+)+$"), encode, STEPS),
    (split("(a|a)*b"), encode, STEPS),
    (tekken(pattern="(a+)+$"), encode, STEPS),
    (write("chat_template.jinja", DOUBLED), chat, "chat_template: line 1: a string would be longer than"),
    (
        write("chat_template.jinja", "{{ 9" + "(" * 500_000 + "9" + ")" * 500_000 + " }}"),
        chat,
        "chat_template.jinja: chat_template: line 1: .*nested more than",
    ),
    (write("chat_template.jinja", "x" * (512 << 20)), chat, "chat_template.jinja: has .* more than 1048576"),
]
# Of a process by itself, since whoever starts it may be large.
MEASURE = """
import re, resource, sys
from pathlib import Path
sys.path.insert(0, {here!r})
import tiny_directories
def kib(key): return int(re.search(key + r":\\s*(\\d+)", Path("/proc/self/status").read_text())[1])
before = kib("VmRSS")
resource.setrlimit(resource.RLIMIT_AS, ((kib("VmSize") << 10) + (2 << 30),) * 2)
try:
    tiny_directories.{door}(Path({model!r}))
except ValueError as error:
    print(error)
print(kib("VmHWM") - before)
"""


@pytest.mark.parametrize(("damage", "door", "said"), BOMBS, ids=range(len(BOMBS)))
def test_little_is_taken_before_it_is_refused(
    tiny_model: Path, damage: Damage, door: Door, said: str
) -> None:
    damage(tiny_model)
    code = MEASURE.format(here=str(Path(__file__).parent), door=door.__name__, model=str(tiny_model))
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    refused, kib = done.stdout.splitlines()
    assert re.match(said, refused.removeprefix(f"{tiny_model}/"))
    assert int(kib) < 256 << 10
