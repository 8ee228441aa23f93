"""Scans that are traced all at once cost what their steps cost one by one."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from heterps_runtime.huggingface.source import huggingface_source
from heterps_runtime.tracing import counted_pass
from heterps_runtime.tracing.trace import trace_source

CONFIG = {
    "model_type": "mamba", "architectures": ["MambaForCausalLM"], "hidden_size": 32,
    "num_hidden_layers": 2, "state_size": 8, "vocab_size": 64,
}  # fmt: skip


@pytest.mark.slow
def test_a_scan_costs_what_its_steps_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    source = huggingface_source(CONFIG, 16)
    for dtype in ("float32", "bfloat16"):
        at_once = trace_source(source, "mamba", dtype).layers
        with monkeypatch.context() as patch:
            patch.setattr(counted_pass, "scans_at_once", nullcontext)
            by_steps = trace_source(source, "mamba", dtype).layers
        for one, other in zip(at_once, by_steps, strict=True):
            assert (one.name, one.output_bytes) == (other.name, other.output_bytes)
            assert one.forward_flops == other.forward_flops
            assert one.backward_flops == pytest.approx(other.backward_flops, rel=0.02)
            assert one.activation_bytes == pytest.approx(other.activation_bytes, rel=0.05)
            assert one.memory_traffic_bytes == pytest.approx(other.memory_traffic_bytes, rel=0.2)
