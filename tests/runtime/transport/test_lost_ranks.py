"""An error is a lost rank by where it was raised, whatever it says."""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import HashStore  # type: ignore[attr-defined]

from heterps_runtime.transport.communication import count_groups_anew
from heterps_runtime.transport.lost_ranks import CheckedWork, LostRankError, talking
from tests.runtime.imitations import TEXT


def test_what_fails_while_ranks_talk_is_a_lost_rank_and_nothing_else_is() -> None:
    with pytest.raises(LostRankError, match="mat1 and mat2"), talking():
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")
    with pytest.raises(LostRankError) as error, talking():
        raise dist.DistStoreError("wait timeout")
    assert isinstance(error.value.__cause__, dist.DistStoreError)
    with pytest.raises(ValueError, match="Connection closed"), talking():
        raise ValueError("Connection closed by peer")
    assert not isinstance(RuntimeError(TEXT), LostRankError)


def test_a_message_to_a_rank_that_never_comes_is_a_lost_rank_also_in_a_backward_pass() -> None:
    work = CheckedWork(_Failing())
    with pytest.raises(LostRankError, match="no such peer"):
        work.wait()
    x = torch.ones(1, requires_grad=True)

    def on_gradient(_: Tensor) -> None:
        work.wait()

    x.register_post_accumulate_grad_hook(on_gradient)  # type: ignore[no-untyped-call]
    with pytest.raises(LostRankError, match="no such peer"):
        torch.autograd.backward((x * 2).sum())


def test_a_rank_whose_attempt_to_connect_failed_names_its_groups_like_one_whose_did_not() -> None:
    fresh = _name_of_a_first_group()
    with pytest.raises(LostRankError), talking():
        dist.init_process_group(
            "gloo",
            store=HashStore(),
            rank=0,
            world_size=2,
            timeout=timedelta(milliseconds=20),
        )
    count_groups_anew()
    assert _name_of_a_first_group() == fresh


def _name_of_a_first_group() -> str:
    """Under which its ranks find one another."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        assert dist.group.WORLD is not None
        return str(dist.group.WORLD.group_name)
    finally:
        dist.destroy_process_group()


class _Failing(dist.Work):
    """A message whose other end has gone."""

    def wait(self, timeout: object = None) -> bool:
        raise RuntimeError("no such peer")
