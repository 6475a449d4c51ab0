"""What a program would take while it runs, found without taking it."""

from __future__ import annotations

import contextlib
import weakref
from typing import Any

# Beside what is a few times as large as the archive: of a small program's inputs and outputs.
_ALWAYS_BYTES = 1 << 30


def check_memory(module: Any, arguments: tuple[Any, ...], keywords: dict[str, Any], file_bytes: int) -> None:
    """Raises ValueError where tensors of one time have more bytes than an archive of this size explains.

    Operations are asked for shapes alone, as when the program was traced; no further than these tell without
    values. Raises what operations do for arguments that do not fit.
    """
    import torch
    from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, ShapeEnv
    from torch.utils._python_dispatch import TorchDispatchMode

    limit = _ALWAYS_BYTES + 4 * file_bytes
    users: dict[int, int] = {}  # tensors that are there, by the storage that they share
    taken = 0

    def drop(storage: int, size: int) -> None:
        nonlocal taken
        users[storage] -= 1
        if users[storage] == 0:
            taken -= size

    def add(tensor: torch.Tensor) -> None:
        nonlocal taken
        storage, size = tensor.untyped_storage()._cdata, int(tensor.untyped_storage().nbytes())
        taken += size if users.get(storage, 0) == 0 else 0
        users[storage] = users.get(storage, 0) + 1
        weakref.finalize(tensor, drop, storage, size)

    class Count(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            for value in result if isinstance(result, (tuple, list)) else (result,):
                if isinstance(value, torch.Tensor):
                    add(value)
            if taken > limit:
                raise ValueError(f"its tensors would take {taken} bytes, the archive has {file_bytes}")
            return result

    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())
    values = (DataDependentOutputException, GuardOnDataDependentSymNode)
    with contextlib.suppress(*values), torch.no_grad(), mode, Count():
        module(*arguments, **keywords)
