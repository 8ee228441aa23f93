"""Counted layers: one array for each figure, found once for each tuple."""

from heterps_envs.card_times.counted import MOST_KEPT, counted
from tests.envs.card_times.made_samples import block


def test_a_figure_of_each_layer_is_in_its_place() -> None:
    layers = (block(64), block(1024))
    found = counted(layers)
    for index, layer in enumerate(layers):
        assert found.forward_flops[index] == layer.forward_flops
        assert found.backward_flops[index] == layer.backward_flops
        assert found.traffic_bytes[index] == layer.memory_traffic_bytes
        assert found.trained_parameters[index] == layer.trained_parameters
        own = layer.num_parameters - layer.sparse_parameters
        assert found.dense_parameters[index] == own


def test_a_tuple_is_counted_once() -> None:
    layers = (block(64),)
    assert counted(layers) is counted(layers)


def test_a_list_that_changes_is_counted_anew() -> None:
    layers = [block(64)]
    before = counted(layers)
    layers.append(block(128))
    assert len(before.kernels) == 1
    assert len(counted(layers).kernels) == 2


def test_a_tuple_that_was_dropped_is_counted_anew_as_it_is() -> None:
    first = (block(64),)
    before = counted(first)
    others = [(block(128),) for _ in range(MOST_KEPT)]
    for each in others:
        counted(each)
    assert counted(first) is not before
    assert counted(first).forward_flops[0] == before.forward_flops[0]
