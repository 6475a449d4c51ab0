"""What is damaged in files of torch's: bytes, the records of archives, opcodes of pickles, members of JSON.

Everything is drawn from the ``random.Random`` that is given, so a case comes back with its number.
"""

from __future__ import annotations

import io
import json
import pickletools
import random
import struct
import warnings
import zipfile
from collections.abc import Callable
from typing import Any

MARKER = "hostile_marker"  # of a file that code in a pickle makes, and of a module that it imports
Records = list[tuple[str, bytes]]

ODD_NUMBERS = [0, -1, 1, 2, 7, 255, 2**16, 2**31 - 1, 2**31, 10**10, 2**62, 2**63, 10**30, -(10**18)]
# What runs code, or finds it; and what torch's careful reader calls.
CODE = [
    *("os.system", "posix.system", "builtins.eval", "builtins.exec", "builtins.open", "io.open"),
    *("subprocess.Popen", "subprocess.call", "shutil.rmtree", "pathlib.Path.touch", "runpy.run_path"),
    *("importlib.import_module", "builtins.__import__", "builtins.getattr", "functools.partial"),
    *("pickle.loads", "torch.load", "torch.storage._load_from_bytes", "torch.jit.load", "torch.hub.load"),
    *("torch.utils.cpp_extension.load", "torch._utils._import_dotted_name", "torch.ops.load_library"),
    *("operator.attrgetter", f"{MARKER}.run", "os", "__main__.x"),
]
MAKERS = [
    *("builtins.bytearray", "_codecs.encode", "torch.FloatTensor", "torch.Tensor", "torch.HalfTensor"),
    *("torch.storage.UntypedStorage", "torch.storage.TypedStorage", "torch.Size", "torch.device"),
    *("torch._utils._rebuild_tensor", "torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_tensor_v3"),
    *("torch._utils._rebuild_parameter", "torch._utils._rebuild_parameter_with_state"),
    *("torch._utils._rebuild_qtensor", "torch._utils._rebuild_sparse_tensor"),
    *("torch._utils._rebuild_nested_tensor", "torch._utils._rebuild_wrapper_subclass"),
    *("torch._utils._rebuild_meta_tensor_no_storage", "torch._tensor._rebuild_from_type_v2"),
    *("torch.nn.parameter.Parameter", "collections.OrderedDict", "collections.Counter", "builtins.set"),
]
ARGUMENTS = [f"touch {MARKER}", f"open({MARKER!r}, 'w')", f"import {MARKER}", MARKER, "w", "../" + MARKER]
NAMES = [
    *(f"../{MARKER}", f"../../{MARKER}", f"/{MARKER}", f"a\\..\\{MARKER}", "", ".", "x" * 5000),
    *(
        "data.pkl",
        "constants.pkl",
        "version",
        "byteorder",
        "data/0",
        ".format_version",
        "é\udc80".encode("utf-8", "replace").decode(),
    ),
    *("models/model.json", "data/weights/model.pt", "data/constants/custom_obj_0", "code/x.py"),
    *("data/aotinductor/model/a.so", "serialized_exported_program.json", "extra/a", "models/other.json"),
]
EXPRESSIONS = [
    *("s0", "s0 + 1", "Symbol('s0', integer=True)", "Integer(4)", "-s0", "s0 // 2", "1/0", "s0 / 0"),
    *("9**9**9**9", "Pow(9, Pow(9, Pow(9, 9)))", "9^9^9^9", "1 << 10**10", "Mod(s0, 0)", "FloorDiv(1, 0)"),
    *("(" * 150 + "s0" + ")" * 150, "s0 + " * 3000 + "s0", "9" * 5000, "Max(" + "s0, " * 500 + "1)", "1e999"),
    *(f"__import__({MARKER!r})", f"open({MARKER!r}, 'w')", f"Symbol(\"__import__('{MARKER}')\")", "f()"),
    *("Integer('9')", "s0.__class__", "[s0]", "'s0'", "None", "True", "zoo", "oo", "u0", "z9", "Symbol()"),
]  # fmt: skip
OPERATIONS = [
    *("os.system", "torch.os.system", f"{MARKER}.run", "_operator.add", "_operator.methodcaller"),
    *("math.ceil", "torch.sym_int", "torch._C._set_grad_enabled", "torch.ops.other.op.default"),
    *("torch.ops.aten.add.Tensor", "torch.ops.aten.mul.Scalar", "torch.ops.aten.zeros.default"),
    *("torch.ops.aten.full.default", "torch.ops.aten.arange.default", "torch.ops.aten.from_file.default"),
    *("torch.ops.aten.view.default", "torch.ops.aten.as_strided.default", "torch.ops.aten.index.Tensor"),
    *("torch.ops.aten.embedding.default", "torch.ops.aten.repeat.default", "torch.ops.aten.expand.default"),
    *("torch.ops.aten.linear.default", "torch.ops.aten.resize_.default", "torch.ops.aten.cat.default"),
    *("torch.ops.aten._softmax.default", "torch.ops.aten.rsqrt.default", "torch.ops.aten.silu.default"),
    *("torch.ops.aten.add.__class__", "torch.ops.aten.add", "torch.ops.aten.nothing.default"),
]


def change_bytes(data: bytes, rng: random.Random) -> bytes:
    made = bytearray(data)
    for _ in range(rng.randrange(1, 6)):
        at = rng.randrange(len(made) + 1)
        match rng.randrange(7):
            case 0:
                made[at : at + 1] = bytes([rng.randrange(256)])
            case 1:
                made[at:at] = rng.randbytes(rng.randrange(1, 9))
            case 2:
                del made[at : at + rng.randrange(1, 20)]
            case 3:
                made[at:at] = made[at : at + rng.randrange(60)]
            case 4:
                made[at : at + 8] = struct.pack("<Q", rng.choice(ODD_NUMBERS) % 2**64)
            case 5 if rng.random() < 0.3:
                del made[at:]
            case _:
                if at < len(made):
                    made[at] ^= 1 << rng.randrange(8)
    return bytes(made)


# Archives.


def read_records(data: bytes) -> Records:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return [(name, archive.read(name)) for name in archive.namelist()]


def write_records(records: Records, method: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(buffer, "w", method) as archive:
        warnings.simplefilter("ignore")  # of names that are there twice
        for name, content in records:
            archive.writestr(zipfile.ZipInfo(name or " "), content, method)  # of no time
    return buffer.getvalue()


def change_records(records: Records, rng: random.Random) -> bytes:
    """Which records there are, their names, their lengths and how they are stored."""
    made = list(records)
    at = rng.randrange(len(made))
    name, content = made[at]
    root = name.split("/")[0]
    other = rng.randrange(len(made))
    match rng.randrange(9):
        case 0:
            made[at] = (name, content[: rng.randrange(len(content) + 1)])
        case 1:
            made.pop(at)
        case 2:
            made.insert(rng.randrange(len(made) + 1), (name, made[other][1]))
        case 3:
            new = rng.choice(NAMES)
            made[at] = (new if rng.random() < 0.5 else f"{root}/{new}", content)
        case 4:
            made[at], made[other] = (name, made[other][1]), (made[other][0], content)
        case 5:
            made[at] = (name, content + bytes(rng.choice([1, 7, 4096, 10**6])))
        case 6:
            made.append((f"{root}/{rng.choice(NAMES)}", content))
        case 7:
            made[at] = (name, bytes(20_000_000))
            return write_records(made, zipfile.ZIP_DEFLATED)
        case _:
            return change_directory(write_records(made), rng)
    return write_records(made)


def change_directory(data: bytes, rng: random.Random) -> bytes:
    """Numbers that a ZIP file has of its records: lengths, checksums, places, counts."""
    made = bytearray(data)
    signature, size = rng.choice([(b"PK\1\2", 46), (b"PK\1\2", 46), (b"PK\3\4", 30), (b"PK\5\6", 22)])
    places = [at for at in range(len(data)) if data.startswith(signature, at)]
    if places:
        at = rng.choice(places) + rng.randrange(4, size - 1, 2)
        odd = rng.choice([0, 1, 8, 0xFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, len(data), rng.randrange(2**32)])
        width = rng.choice([2, 4])
        made[at : at + width] = (odd % 256**width).to_bytes(width, "little")
    return bytes(made)


# Pickles.


def text_op(text: str) -> bytes:
    encoded = text.encode()
    return b"X" + struct.pack("<I", len(encoded)) + encoded


def number_op(value: int) -> bytes:
    if -(2**31) <= value < 2**31:
        return b"J" + struct.pack("<i", value)
    encoded = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(encoded)]) + encoded


def call_ops(rng: random.Random) -> bytes:
    """Calls something, in one of the ways that pickles have."""
    module, _, name = rng.choice(rng.choice([CODE, MAKERS])).rpartition(".")
    values = [
        text_op(rng.choice(ARGUMENTS)),
        number_op(rng.choice(ODD_NUMBERS)),
        b"N",
        b")",
        b"]",
        b"}",
        b"h\0",
    ]
    arguments = b"".join(rng.choice(values) for _ in range(rng.choice([0, 1, 1, 1, 2, 3, 6])))
    by_line = f"{module}\n{name}\n".encode()
    function = rng.choice([b"c" + by_line, text_op(module) + text_op(name) + b"\x93"])
    tuple_op = b"(" + arguments + b"t"
    match rng.randrange(6):
        case 0 | 1:
            return function + tuple_op + b"R"
        case 2:
            return function + tuple_op + b"\x81"
        case 3:
            return b"(" + arguments + b"i" + by_line
        case 4:
            return b"(" + function + arguments + b"o"
        case _:
            return function + b")" + b"R" + build_state(rng) + b"b"


def build_state(rng: random.Random) -> bytes:
    """Attributes of an object, some of them in the place of its methods."""
    keys = [
        "items",
        "keys",
        "get",
        "__class__",
        "numel",
        "detach",
        "is_meta",
        "layout",
        "dtype",
        "shape",
        "x",
    ]
    state = b"}" + text_op(rng.choice(keys)) + rng.choice([b"N", b"]", text_op(MARKER), number_op(5)]) + b"s"
    return rng.choice([state, state, b"(" + state + state + b"t", b"N", b")", b"]"])


def odd_value(rng: random.Random) -> bytes:
    match rng.randrange(8):
        case 0 | 1 | 2:
            return call_ops(rng)
        case 3:
            return number_op(rng.choice(ODD_NUMBERS))
        case 4:
            depth = rng.choice([5, 100, 2000, 300_000])
            return rng.choice([b"N" + b"\x85" * depth, b"]" * depth + b"a" * (depth - 1)])
        case 5:
            key = rng.choice(["storage", "module", MARKER])
            return b"(" + text_op(key) + text_op("0") + number_op(rng.choice(ODD_NUMBERS)) + b"tQ"
        case 6:
            return b"}" + call_ops(rng) + b"Ns"
        case _:
            return rng.choice(
                [b"N", b"\x88", b")", b"]", b"}", b"h\0", b"h\xff", text_op("a" * 300), b"G" + b"\xff" * 8]
            )


def pickle_ops(data: bytes) -> list[tuple[str, Any, int, int]]:
    """Each opcode's name, argument, begin and end; of all pickles that follow each other."""
    found: list[tuple[str, Any, int, int]] = []
    stream = io.BytesIO(data)
    while stream.tell() < len(data):
        try:
            ops = list(pickletools.genops(stream))
        except ValueError:
            break  # a legacy file's storages lie behind its pickles
        begins = [begin or 0 for _, _, begin in ops]
        ends = [*begins[1:], stream.tell()]
        names = [(op.name, argument) for op, argument, _ in ops]
        found += [(*name, begin, end) for name, begin, end in zip(names, begins, ends, strict=True)]
    return found


VALUES = {"BININT", "BININT1", "BININT2", "LONG1", "BINUNICODE", "NONE", "NEWTRUE", "NEWFALSE", "EMPTY_TUPLE"}


def change_pickle(data: bytes, rng: random.Random) -> bytes:
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        ops = pickle_ops(data)
        if not ops:
            return change_bytes(data, rng)
        values = [op for op in ops if op[0] in VALUES] or ops
        name, _, begin, end = rng.choice(ops)
        match rng.randrange(8):
            case 0 | 1:
                _, _, begin, end = rng.choice(values)
                new = odd_value(rng)
            case 2:
                numbers = [op for op in values if "INT" in op[0] or op[0] == "LONG1"] or values
                _, _, begin, end = rng.choice(numbers)
                new = number_op(rng.choice(ODD_NUMBERS))
            case 3:  # a key and its value, in front of what puts them into a dict
                _, _, begin, end = rng.choice([op for op in ops if op[0] in ("SETITEMS", "SETITEM")] or ops)
                new = rng.choice([text_op("x"), odd_value(rng)]) + odd_value(rng) + data[begin:end]
            case 4:  # in the place of all, or attributes of it
                _, _, begin, end = rng.choice([op for op in ops if op[0] == "STOP"])
                new = rng.choice([odd_value(rng), build_state(rng) + b"b", build_state(rng) + b"b"]) + b"."
            case 5:  # attributes of what was made there
                made = [op for op in ops if op[0] in ("REDUCE", "EMPTY_DICT", "BINPUT")] or ops
                _, _, begin, end = rng.choice(made)
                new = data[begin:end] + build_state(rng) + b"b"
            case 6:
                new = b"" if rng.random() < 0.5 else data[begin:end] * 2
            case _:
                other = rng.choice([op for op in ops if op[0] == name])
                new = data[other[2] : other[3]]
        data = data[:begin] + new + data[end:]
    return data


# JSON.


def odd_json(key: str, rng: random.Random) -> Any:
    if rng.random() < 0.6:
        if key == "expr_str":
            return rng.choice(EXPRESSIONS)
        if key in ("target", "as_operator"):
            return rng.choice(OPERATIONS)
        if key in ("as_int", "min_val", "max_val", "hint"):
            return rng.choice(ODD_NUMBERS)
    deep: Any = rng.choice([[], {}, 0])
    for _ in range(rng.choice([2, 90, 400])):
        deep = [deep] if rng.random() < 0.5 else {"as_int": deep}
    values = [rng.choice(ODD_NUMBERS), 1e308, 0.5, float("nan"), float("inf"), None, True, False, deep]
    values += [
        "",
        "x",
        MARKER,
        f"{MARKER}.run",
        f"__import__({MARKER!r})",
        f"../{MARKER}",
        "\u00e9\0",
        "x" * 5000,
    ]
    values += [[], {}, [None], [[]], {"as_int": 1}, {"as_none": True}, {"as_tensor": {"name": "x"}}]
    values += [{"as_expr": {"expr_str": "s9"}}, {"as_custom_obj": {"name": "x", "class_fqn": MARKER}}]
    return rng.choice(values)


def places_in(document: Any) -> dict[str, list[tuple[Any, Any]]]:
    """Containers and what they are asked with, by that or, in a list, by the list's own key."""
    found: dict[str, list[tuple[Any, Any]]] = {}
    waiting: list[tuple[str, Any]] = [("", document)]
    while waiting:
        key, value = waiting.pop()
        pairs: Any = (
            value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        )
        for inner_key, inner in pairs:
            name = inner_key if isinstance(inner_key, str) else key
            found.setdefault(name, []).append((value, inner_key))
            waiting.append((name, inner))
    return found  # fmt: skip


def change_json(data: bytes, rng: random.Random) -> bytes:
    document = json.loads(data)
    for _ in range(rng.choice([1, 1, 2, 5])):
        places = places_in(document)
        if not places:
            break
        key = rng.choice(sorted(places))
        container, at = rng.choice(places[key])
        match rng.randrange(6):
            case 0:
                del container[at]
            case 1:
                other, other_at = rng.choice(places[rng.choice(sorted(places))])
                container[at] = json.loads(json.dumps(other[other_at]))
            case 2 if isinstance(container, dict):
                container[rng.choice([f"a{at}", f"{at} x", f"__import__({MARKER!r})"])] = container.pop(at)
            case 2 if isinstance(container, list):
                container.insert(rng.randrange(len(container) + 1), container[at])
            case _:
                container[at] = odd_json(key, rng)
    text = json.dumps(document)
    if rng.random() < 0.05:
        text = text.replace("{", rng.choice(['{"a": 1, "a": 2, ', '{"a": 1e999, ', "[" * 100_000 + "{"]), 1)
    return change_bytes(text.encode(), rng) if rng.random() < 0.05 else text.encode()


# Whole files.


def change_archive(data: bytes, rng: random.Random) -> bytes:
    """One of an archive's records, by what it is."""
    records = read_records(data)
    changes: dict[str, Callable[[bytes, random.Random], bytes]] = {
        ".pkl": change_pickle,
        ".json": change_json,
    }
    inner = [i for i, (name, _) in enumerate(records) if name.endswith((*changes, ".pt"))]
    if not inner or rng.random() < 0.25:
        return change_records(records, rng)
    at = rng.choice(inner)
    name, content = records[at]
    if name.endswith(".pt"):
        content = (
            change_archive(content, rng)
            if content
            else rng.choice([b".", b"N.", b"\x80\x02" + call_ops(rng)])
        )
    else:
        content = changes["." + name.rpartition(".")[2]](content, rng)
    records[at] = (name, content)
    return write_records(records)  # fmt: skip


def changed(data: bytes, rng: random.Random) -> bytes:
    """A file with a damage that fits what it is."""
    if not data or rng.random() < 0.1:
        return change_bytes(data, rng)
    if data.startswith(b"PK"):
        return change_archive(data, rng)
    return change_json(data, rng) if data.startswith(b"{") else change_pickle(data, rng)
