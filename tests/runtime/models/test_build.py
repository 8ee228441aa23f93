"""Models are built without memory, by several threads, too."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

from heterps_runtime.models.build import build_module, forget_factory, register_factory
from tests.runtime.small_models import source_of


def test_threads_that_build_at_once_leave_modules_as_they_were() -> None:
    def slow() -> nn.Module:
        time.sleep(0.02)  # the other thread begins meanwhile
        return nn.Linear(2, 2)

    name = register_factory(slow)
    source = source_of("sequential").changed(factory=name)
    try:
        with ThreadPoolExecutor(2) as pool:
            found = list(pool.map(lambda dtype: build_module(source, dtype=dtype), FORMATS))
    finally:
        forget_factory(name)
    for module, dtype in zip(found, FORMATS, strict=True):
        assert {p.dtype for p in module.parameters()} == {getattr(torch, dtype)}
        assert all(p.is_meta for p in module.parameters())
    # A module of somebody else has its parameters as ever.
    assert not nn.Linear(2, 2).weight.is_meta
    assert torch.get_default_dtype() == torch.float32


FORMATS = ("bfloat16", "float32") * 3
