"""What an archive of ``torch.export`` may hold.

``torch.export.load`` runs code of an archive's: pickles without limits, expressions of sizes by ``eval``,
functions of any module that torch imports as operations of the graph, compiled libraries. So it is looked at
before.
"""

from __future__ import annotations

import ast
import io
import json
import pickle
import re
from pathlib import Path
from typing import Any

from quire.torch_export.pickle_check import check_saved_pickles
from quire.torch_export.sources import check_records, first_line

# Of records: what they are, and what would do.
_REFUSED_RECORDS = {
    "data/aotinductor/": "compiled code; export the model without compiling it",
    "data/constants/custom_obj_": "an object of TorchScript's; export a model without one",
    "data/constants/opaque_obj_": "a pickled object; export a model without one",
}
# Functions and names of expressions of sizes.
_SIZE_NAMES = re.compile(
    r"Symbol|Integer|Float|Rational|Half|One|Zero|NegativeOne|Mul|Add|Pow|Max|Min|Mod|PythonMod|FloorDiv|CleanDiv|"
    r"CeilDiv|IntTrueDiv|Equality|Unequality|Eq|Ne|(Strict)?(Less|Greater)Than|Lt|Le|Gt|Ge|And|Or|Not|[suz]\d+"
)
_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow, ast.UAdd, ast.USub)
_MAX_SIZE_TEXT = 10_000
_MAX_EXPONENT = 64
_PYTHON_OPERATIONS = re.compile(
    r"_operator\.(add|sub|mul|floordiv|mod|truediv|pow|neg|eq|ne|lt|le|gt|ge|and_|or_|getitem)"
    r"|math\.(ceil|floor|trunc)|torch\.sym_(int|float|max|min|not|ite|sum)"
    r"|torch\.ops\.higher_order\.wrap_with_(set_grad_enabled|autocast)|torch\._C\._set_grad_enabled"
)
_ATEN_OPERATION = re.compile(r"torch\.ops\.aten\.(\w+)\.(\w+)")
# Names, of which torch makes the source of a function.
_PLAIN = re.compile(r"[\w.:@-]*", re.ASCII)
_TREE_TYPES = re.compile(
    r"builtins\.(tuple|list|dict)|collections\.OrderedDict|transformers\.[\w.]+", re.ASCII
)


def check_archive(path: Path) -> None:
    """Raises ValueError naming what the archive holds that would run code, or that is not read."""
    import torch

    # torch.export.load falls back on an older form, of pickles, which Python's reader of archives finds.
    names = check_records(path, "an archive of torch.export")
    if not names:
        raise ValueError(f"{path}: cannot be read as an archive of torch.export: it has no records")
    if "serialized_exported_program.json" in names or "version" in names:
        raise ValueError(f"{path}: is of torch before 2.8; load and save it anew with a later one")
    try:
        reader = torch._C.PyTorchFileReader(str(path))  # torch's own: another might see other records
        records = list(reader.get_all_records())
        contents = {record: reader.get_record(record) for record in records if _is_read(record)}
    except Exception as error:  # of numbers or names that are none, any
        raise ValueError(
            f"{path}: cannot be read as an archive of torch.export: {first_line(error)}"
        ) from None
    if len(set(records)) != len(records):
        raise ValueError(f"{path}: has two records of one name")
    if "models/model.json" not in records:
        raise ValueError(f"{path}: has no record 'models/model.json', which torch.export.save writes")
    for record in records:
        for prefix, what in _REFUSED_RECORDS.items():
            if record.startswith(prefix):
                raise ValueError(f"{path}: record {record!r} is {what}")
        place = f"{path}: record {record!r}"
        if record.endswith(".pt"):
            _check_pickle(contents[record], place)
        elif record.startswith("models/"):
            _check_program(_json(contents[record], place), place)
        elif record.endswith("_config.json"):
            _check_payloads(_json(contents[record], place), place)


def _is_read(record: str) -> bool:
    return record.startswith("models/") or record.endswith((".pt", "_config.json"))


def _json(content: bytes, place: str) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{place} cannot be read as JSON: {error}") from None


def _check_pickle(content: bytes, place: str) -> None:
    """What the careful reader takes, the careless one takes for the same."""
    import torch

    if not content:
        return
    try:
        check_saved_pickles(io.BytesIO(content), place)
        torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        named = re.search(r"GLOBAL ([\w.]+)", str(error))
        wanted = f" names {named[1]}, which" if named else ""
        raise ValueError(
            f"{place}: refused, because its pickle{wanted} is no tensor and might run code; "
            "export the model with tensors as its only inputs"
        ) from None
    except Exception as error:  # whatever its reader raises
        if str(error).startswith(place):
            raise
        raise ValueError(f"{place} cannot be read as torch.save writes: {first_line(error)}") from None


def _check_payloads(content: Any, place: str) -> None:
    config = content.get("config") if isinstance(content, dict) else None
    if not isinstance(config, dict):
        raise ValueError(f"{place}: 'config' is missing")
    for name, payload in config.items():
        if not isinstance(payload, dict) or payload.get("use_pickle") is not False:
            raise ValueError(
                f"{place}: tensor {name!r:.200} is pickled; only dense tensors of torch's are read"
            )
        for key in ("tensor_meta", "path_name"):
            if not payload.get(key):
                raise ValueError(f"{place}: tensor {name!r:.200} has no {key!r}")


def _check_program(content: Any, place: str) -> None:
    if not isinstance(content, dict) or not isinstance(content.get("graph_module"), dict):
        raise ValueError(f"{place}: 'graph_module' is missing")
    try:
        _check_value(content["graph_module"], "graph_module", place)
    except RecursionError:
        raise ValueError(f"{place}: 'graph_module' is nested too deeply") from None


def _check_value(value: Any, key: str, place: str) -> None:
    if isinstance(value, dict):
        for inner_key, inner in value.items():
            _check_plain(inner_key, key, place)
            if inner_key != "metadata":  # stacks of the export: text
                _check_value(inner, inner_key, place)
    elif isinstance(value, list):
        for inner in value:
            _check_value(inner, key, place)
    elif not isinstance(value, str):
        return
    elif key == "expr_str":
        _check_size(value, place)
    elif key in ("in_spec", "out_spec"):
        _check_tree(value, place)
    elif key in ("target", "as_operator"):
        _check_operation(value, place)
    else:
        _check_plain(value, key, place)


def _check_plain(value: str, key: str, place: str) -> None:
    if not _PLAIN.fullmatch(value):
        raise ValueError(f"{place}: {key!r} must hold letters, digits and dots, got {value!r:.100}")


def _check_operation(target: str, place: str) -> None:
    import torch

    if _PYTHON_OPERATIONS.fullmatch(target):
        return
    named = _ATEN_OPERATION.fullmatch(target)
    # from_file maps, and makes, files.
    if named and named[1] not in ("from_file", "from_file_out"):
        operation = getattr(getattr(torch.ops.aten, named[1], None), named[2], None)
        if isinstance(operation, torch._ops.OpOverload):
            return
    raise ValueError(
        f"{place}: the graph calls {target!r:.100}, which is no operation of torch.ops.aten; "
        "export the model without it, or save its state_dict()"
    )


def _check_size(text: str, place: str) -> None:
    """Sums, products and the like of symbols and numbers, of which none takes long to compute."""
    refused = ValueError(f"{place}: the size {text!r:.100} is no expression of symbols and numbers")
    try:
        nodes = list(ast.walk(ast.parse(text if len(text) <= _MAX_SIZE_TEXT else "", mode="eval")))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise refused from None
    plain = (ast.Expression, ast.Load, ast.keyword, ast.UnaryOp, *_OPERATORS)
    for node in nodes:
        if isinstance(node, ast.Name):
            accepted = bool(_SIZE_NAMES.fullmatch(node.id))
        elif isinstance(node, ast.Call):
            is_power = isinstance(node.func, ast.Name) and node.func.id == "Pow"
            accepted = isinstance(node.func, ast.Name)
            if is_power:
                accepted = len(node.args) == 2 and _is_small_power(*node.args)
        elif isinstance(node, ast.BinOp):
            accepted = not isinstance(node.op, ast.Pow) or _is_small_power(node.left, node.right)
        elif isinstance(node, ast.Constant):
            is_name = isinstance(node.value, str) and re.fullmatch(r"\w{1,64}", node.value, re.ASCII)
            accepted = bool(is_name) or isinstance(node.value, (int, float))
        else:
            accepted = isinstance(node, plain)
        if not accepted:
            raise refused


def _is_small_power(base: ast.expr, exponent: ast.expr) -> bool:
    """Of what is no power itself, to a number of a few digits: ``9**9**9`` is computed as it is read."""
    names = ("Integer", "Rational", "Half", "One", "NegativeOne")
    for node in ast.walk(exponent):
        if isinstance(node, ast.Constant):
            if not isinstance(node.value, (int, float)) or abs(node.value) > _MAX_EXPONENT:
                return False
        elif isinstance(node, ast.Name):
            if node.id not in names:
                return False
        elif not isinstance(node, (ast.Call, ast.Load, ast.UnaryOp, ast.USub)):
            return False
    return not any(
        isinstance(node, ast.Pow) or (isinstance(node, ast.Name) and node.id == "Pow")
        for node in ast.walk(base)
    )


def _check_tree(text: str, place: str) -> None:
    """How inputs and outputs are nested: torch imports the modules of the types that are named."""
    if not text:
        return

    def check(node: Any) -> None:
        if isinstance(node, list):
            for inner in node:
                check(inner)
        elif isinstance(node, dict):
            kind = node.get("type")
            if kind is not None and not (isinstance(kind, str) and _TREE_TYPES.fullmatch(kind)):
                raise ValueError(
                    f"{place}: takes or returns {kind!r:.100}; "
                    "export a model that returns a tensor, a tuple or a dict"
                )
            context = node.get("context")
            check_names(_json(context.encode(), place) if isinstance(context, str) else context)
            check(node.get("children_spec", []))

    def check_names(value: Any) -> None:
        if isinstance(value, list):
            for inner in value:
                check_names(inner)
        elif isinstance(value, str):
            _check_plain(value, "context", place)
        elif value is not None and not isinstance(value, (int, float)):  # enums' modules would be imported
            raise ValueError(f"{place}: 'context' of an input or output must be names, got {value!r:.100}")

    try:
        check(_json(text.encode(), place))
    except RecursionError:
        raise ValueError(f"{place}: an input or output is nested too deeply") from None
