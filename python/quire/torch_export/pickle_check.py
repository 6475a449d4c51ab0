"""What a pickle may hold for torch to read it: nothing that takes more than what is stored of it.

torch's careful reader calls only what makes tensors and the like. Still a few bytes might ask for
gigabytes, and a key be nested so deep that its hash ends the process.
"""

from __future__ import annotations

import io
import pickletools
import re
from collections.abc import Iterator
from typing import IO

_MAX_DEPTH = 100
_MAX_ITEMS = 4096  # of a tuple with all in it, as often as they are
_PICKLES = 5  # of a file from before archives: three of its form, the content, the keys of its storages
_VALUES = {
    *("NONE", "NEWTRUE", "NEWFALSE", "EMPTY_TUPLE", "EMPTY_LIST", "EMPTY_DICT", "EMPTY_SET", "GLOBAL"),
    *("BININT", "BININT1", "BININT2", "BINFLOAT", "LONG1", "BINUNICODE", "SHORT_BINSTRING"),
}
_STATE_NAMES = r"collections\.OrderedDict|torch\._utils\.\w+|torch\.\w+"
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_PUTS, _GETS = ("BINPUT", "LONG_BINPUT"), ("BINGET", "LONG_BINGET")
_TAKEN = {"APPEND": 1, "SETITEM": 2, "BUILD": 1, "REDUCE": 1, "NEWOBJ": 1}  # what each leaves is below these
# How deep a value's tuples lie in each other, and how much is in them.
_Size = tuple[int, int]
_PLAIN: _Size = (0, 1)


def check_pickles(stream: IO[bytes], place: str, count: int = 1) -> None:
    """Raises ValueError for a pickle that asks for more than it holds. Others are for torch to refuse."""
    for _ in range(count):
        try:
            _check(pickletools.genops(stream), place)
        except (IndexError, KeyError):  # of the stack or the memo: torch's reader sees the same
            return
        except ValueError as error:
            if str(error).startswith(place):
                raise
            return  # an opcode that is none


def check_saved_pickles(stream: IO[bytes], place: str) -> None:
    """Of what ``torch.save`` wrote. Raises also what torch's reader of archives does."""
    if not is_archive(stream):
        check_pickles(stream, place, _PICKLES)
        return
    import torch

    reader = torch._C.PyTorchFileReader(stream)  # torch's own: another might see other records
    for record in reader.get_all_records():
        if record.endswith(".pkl"):
            check_pickles(io.BytesIO(reader.get_record(record)), place)


def foreign_name(stream: IO[bytes]) -> str | None:
    """What a pickle by itself names first that is no part of a state dict, of newer protocols too."""
    strings: list[str] = []
    memo: list[str] = []
    try:
        for operation, argument, _ in pickletools.genops(stream):
            if operation.name == "MEMOIZE":
                memo.append(strings[-1] if strings else "")
            elif operation.name in _GETS:
                strings.append(memo[argument] if isinstance(argument, int) else "")
            elif "UNICODE" in operation.name:
                strings.append(str(argument))
            if operation.name in ("GLOBAL", "INST"):
                name = str(argument).replace(" ", ".")
            elif operation.name == "STACK_GLOBAL":
                name = ".".join(strings[-2:])
            else:
                continue
            if not re.fullmatch(_STATE_NAMES, name) and re.fullmatch(r"[\w.]{1,200}", name):
                return name
    except (IndexError, ValueError):  # no pickle, or none to its end
        pass
    return None


def is_archive(stream: IO[bytes]) -> bool:
    """As torch tells it; leaves the stream at its begin."""
    begin = stream.read(4)
    stream.seek(0)
    return begin == b"PK\3\4"


def _check(operations: Iterator[tuple[pickletools.OpcodeInfo, object, int | None]], place: str) -> None:
    """Goes through a pickle without making anything, but for the sizes of its tuples."""
    stack: list[_Size] = []
    marks: list[list[_Size]] = []
    memo: dict[object, _Size] = {}
    for operation, argument, _ in operations:
        name = operation.name
        if name == "GLOBAL" and argument in ("builtins bytearray", "__builtin__ bytearray"):
            raise ValueError(
                f"{place}: refused, because its pickle names builtins.bytearray, which is no tensor"
            )
        if name == "MARK":
            marks.append(stack)
            stack = []
        elif name in ("TUPLE", "APPENDS", "SETITEMS"):
            items, stack = stack, marks.pop()
            if name == "TUPLE":
                stack.append(_tuple_of(items, place))
        elif name in _TUPLES:
            first = len(stack) - _TUPLES[name]
            stack[first:] = [_tuple_of(stack[first:], place)]
        elif name in _VALUES:
            stack.append(_PLAIN)
        elif name in _PUTS:
            memo[argument] = stack[-1]
        elif name in _GETS:
            stack.append(memo[argument])
        elif name in _TAKEN:
            del stack[-_TAKEN[name] :]
            if name in ("REDUCE", "NEWOBJ"):
                stack[-1] = _PLAIN
        elif name == "BINPERSID":
            stack[-1] = _PLAIN
        elif name not in ("PROTO", "STOP"):
            return  # none of the opcodes that torch reads


def _tuple_of(items: list[_Size], place: str) -> _Size:
    depth = 1 + max((depth for depth, _ in items), default=0)
    size = 1 + sum(size for _, size in items)
    if depth > _MAX_DEPTH or size > _MAX_ITEMS:
        raise ValueError(f"{place}: refused, because its pickle has tuples larger than tensors need")
    return depth, size
