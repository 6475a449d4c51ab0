"""The C ABI of the package's own library, by ctypes: its symbols, its structs' sizes, and an answer."""

from __future__ import annotations

import ctypes
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import quire
from paths import ROOT
from quire import LLM, SamplingParams

HEADER = ROOT / "cpp" / "include" / "quire" / "quire.h"
SYMBOLS = {
    "quire_abi_version", "quire_add_lora", "quire_cancel", "quire_engine_create", "quire_engine_destroy",
    "quire_engine_get_stats", "quire_last_error", "quire_list_loras", "quire_pin_lora", "quire_poll",
    "quire_release", "quire_remove_lora", "quire_submit", "quire_version",
}  # fmt: skip
OK, INVALID_ARGUMENT, END = 0, 1, 4


class EngineOptions(ctypes.Structure):
    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("model", ctypes.c_char_p),
        ("config_json", ctypes.c_char_p),
    )


class Event(ctypes.Structure):
    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("request", ctypes.c_uint64),
        ("json", ctypes.c_char_p),
        ("json_size", ctypes.c_size_t),
        ("status", ctypes.c_int32),
        ("finished", ctypes.c_int32),
    )


Callback = ctypes.CFUNCTYPE(None, ctypes.POINTER(Event), ctypes.c_void_p)


class Submission(ctypes.Structure):
    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("text", ctypes.c_char_p),
        ("text_size", ctypes.c_size_t),
        ("messages_json", ctypes.c_char_p),
        ("token_ids", ctypes.POINTER(ctypes.c_int32)),
        ("num_token_ids", ctypes.c_size_t),
        ("params_json", ctypes.c_char_p),
        ("callback", Callback),
        ("user_data", ctypes.c_void_p),
    )


class EngineStats(ctypes.Structure):
    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        *(
            (name, ctypes.c_uint64)
            for name in (
                "num_steps", "num_scheduled_tokens", "num_generation_tokens", "num_preemptions",
                "prefix_cache_queries", "prefix_cache_hits",
            )
        ),
        ("num_waiting_tokens", ctypes.c_int64),
        *(
            (name, ctypes.c_int32)
            for name in ("num_running_reqs", "num_waiting_reqs", "num_free_blocks", "num_total_blocks")
        ),
        ("kv_cache_usage", ctypes.c_double),
    )  # fmt: skip


def library_path() -> Path:
    [path] = Path(quire.__file__).parent.glob("libquire.so*")
    return path


@pytest.fixture(scope="module")
def library() -> Any:
    library = ctypes.CDLL(str(library_path()))
    library.quire_version.restype = ctypes.c_char_p
    library.quire_last_error.restype = ctypes.c_char_p
    handle = ctypes.c_uint64
    library.quire_engine_create.argtypes = (ctypes.POINTER(EngineOptions), ctypes.POINTER(handle))
    library.quire_engine_destroy.argtypes = (handle,)
    library.quire_engine_get_stats.argtypes = (handle, ctypes.POINTER(EngineStats))
    library.quire_submit.argtypes = (handle, ctypes.POINTER(Submission), ctypes.POINTER(handle))
    library.quire_poll.argtypes = (handle, ctypes.c_int64, ctypes.POINTER(Event))
    library.quire_cancel.argtypes = library.quire_release.argtypes = (handle,)
    return library


def test_the_symbols_are_these_and_all_are_in_the_header() -> None:
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", str(library_path())], capture_output=True, text=True, check=True
    )
    assert {
        name for name in re.findall(r" T (\w+)$", listed.stdout, re.MULTILINE) if "quire_" in name[:6]
    } == SYMBOLS
    declared = re.findall(r"^QUIRE_API .*?(quire_\w+)\(", HEADER.read_text(), re.MULTILINE)
    assert sorted(declared) == sorted(SYMBOLS)


def test_structs_have_the_sizes_of_the_first_version() -> None:
    sizes = [ctypes.sizeof(kind) for kind in (EngineOptions, Event, Submission, EngineStats)]
    assert sizes == [24, 40, 72, 88]


def test_the_versions_are_the_packages(library: Any) -> None:
    assert library.quire_version().decode() == quire.__version__
    assert library.quire_abi_version() == 2


def test_an_answer_by_ctypes(library: Any, demo_model: Path) -> None:
    engine, request = ctypes.c_uint64(), ctypes.c_uint64()
    options = EngineOptions(ctypes.sizeof(EngineOptions), str(demo_model).encode(), b'{"num_threads": 1}')
    assert library.quire_engine_create(options, engine) == OK, library.quire_last_error()
    prompt = b"Once upon a time"
    submission = Submission(
        struct_size=ctypes.sizeof(Submission),
        text=prompt,
        text_size=len(prompt),
        params_json=b'{"temperature": 0, "max_tokens": 8}',
    )
    assert library.quire_submit(engine, submission, request) == OK, library.quire_last_error()
    event = Event(struct_size=ctypes.sizeof(Event))
    assert library.quire_poll(request, -1, event) == OK
    answer = json.loads(event.json)
    assert event.finished == 1 and event.json_size == len(event.json)
    assert library.quire_poll(request, -1, event) == END
    assert library.quire_release(request) == OK

    stats = EngineStats(struct_size=ctypes.sizeof(EngineStats))
    assert library.quire_engine_get_stats(engine, stats) == OK
    assert stats.num_generation_tokens == 8 and stats.num_total_blocks > 0
    submission.params_json = b'{"temperature": -1}'
    assert library.quire_submit(engine, submission, request) == INVALID_ARGUMENT
    assert b"temperature must be" in library.quire_last_error()
    assert library.quire_engine_destroy(engine) == OK
    params = SamplingParams(temperature=0, max_tokens=8)
    expected = LLM(demo_model).generate(prompt.decode(), params, use_tqdm=False)
    assert answer["choices"][0]["text"] == expected[0].outputs[0].text


def test_a_process_may_end_with_an_engine_and_a_request_under_way(demo_model: Path) -> None:
    code = f"""
import ctypes
library = ctypes.CDLL({str(library_path())!r})
class Options(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("model", ctypes.c_char_p), ("config", ctypes.c_char_p)]
class Submission(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("text", ctypes.c_char_p), ("text_size", ctypes.c_size_t),
                ("a", ctypes.c_void_p * 3), ("params", ctypes.c_char_p), ("b", ctypes.c_void_p * 2)]
engine, request = ctypes.c_uint64(), ctypes.c_uint64()
options = Options(24, {str(demo_model).encode()!r}, None)
assert library.quire_engine_create(ctypes.byref(options), ctypes.byref(engine)) == 0
submission = Submission(72, b"a", 1, (None,) * 3, b'{{"max_tokens": 1500, "ignore_eos": true}}', (None,) * 2)
assert library.quire_submit(engine, ctypes.byref(submission), ctypes.byref(request)) == 0
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
