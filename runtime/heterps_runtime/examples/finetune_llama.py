"""Fine-tuning a Llama-type model of Hugging Face under a plan, in one's own loop.

    torchrun --nproc-per-node 2 -m heterps_runtime.examples.finetune_llama PLAN [STEPS] [WEIGHTS]

WEIGHTS is a folder of safetensors files. The plan is for 4 decoder layers; its job says batch and
dtype. The token embedding is frozen.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from heterps_runtime.examples.command_line import (
    ExampleParser,
    errors_in_one_line,
    positive_count,
)
from heterps_runtime.own_loop.trainer import PipelineTrainer
from heterps_runtime.training.program import TrainingProgram

VOCABULARY, TOKENS = 256, 16


def llama() -> nn.Module:
    """Four decoder layers, small enough for a test."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=2, use_cache=False,
    )  # fmt: skip
    model: nn.Module = LlamaForCausalLM(config)
    model.get_submodule("model.embed_tokens").requires_grad_(False)
    return model


def token_loss(logits: Tensor, target: Tensor) -> Tensor:
    """Mean cross entropy over all tokens."""
    return nn.functional.cross_entropy(logits.flatten(0, 1).float(), target.flatten())


def batches(steps: int, batch_size: int) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
    """Counting modulo the vocabulary from anywhere: the next token can be learned."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        first = torch.randint(VOCABULARY, (batch_size, 1), generator=generator)
        tokens = (first + torch.arange(TOKENS + 1)) % VOCABULARY
        yield {"input_ids": tokens[:, :-1]}, tokens[:, 1:]


def main(plan: str, steps: int = 20, weights: str | None = None) -> list[float]:
    """Trains; returns the losses."""
    program = TrainingProgram(
        loss=token_loss,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=3e-3),
        max_gradient_norm=1.0,
    )
    trainer = PipelineTrainer(llama, plan, program, weights=weights)
    return [trainer.step(*batch) for batch in batches(steps, trainer.batch_size)]


if __name__ == "__main__":
    parser = ExampleParser(__doc__)
    parser.add_argument("plan", metavar="PLAN")
    parser.add_argument("steps", metavar="STEPS", nargs="?", type=positive_count, default=20)
    parser.add_argument("weights", metavar="WEIGHTS", nargs="?")
    given = parser.parse_args()
    with errors_in_one_line():
        found = main(given.plan, given.steps, given.weights)
    print(f"loss {found[0]:.4f} -> {found[-1]:.4f}", flush=True)
