"""What graph learning adds to PPO."""

import torch

from heterps_agents.training.graphs import clipped_loss


def test_the_clipped_loss_stops_pushing_beyond_its_range() -> None:
    old, advantage = torch.zeros(1), torch.ones(1)
    for log_ratio, gradient in ((0.1, True), (0.5, False)):
        new = torch.tensor([log_ratio], requires_grad=True)
        clipped_loss(new, old, advantage, 0.2).backward()  # type: ignore[no-untyped-call]
        assert new.grad is not None
        assert bool(new.grad.abs() > 0) == gradient
