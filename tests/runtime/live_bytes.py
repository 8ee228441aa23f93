"""Counts what is materialised: for tests of the memory that building and loading take."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Most bytes of CPU tensors that were alive at once; files mapped into memory not counted."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.most = 0
        self._alive: dict[int, tuple[Any, int]] = {}

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        results = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(results):
            if type(tensor) is Tensor and tensor.device.type == "cpu":
                storage = tensor.untyped_storage()
                weak = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
                self._alive[storage.data_ptr()] = weak, storage.nbytes()
        self._alive = {k: v for k, v in self._alive.items() if not v[0].expired()}
        self.most = max(self.most, sum(size for _, size in self._alive.values()))
        return results
