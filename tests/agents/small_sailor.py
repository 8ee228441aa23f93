"""Small problems in Sailor's terms, and every plan of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from heterps_configs.importers.sailor import (
    SailorCluster,
    SailorEnd,
    SailorLayerSizes,
    SailorLayerTimes,
    SailorLink,
    SailorLinks,
    SailorModel,
    SailorNodeType,
    SailorShape,
)
from heterps_configs.importers.sailor_runs import SailorGroup, SailorPlan, SailorStage

ZONE = "here"
GPUS = ("fast", "slow")
DEGREES, SIZES = (1, 2), (1, 2)


def random_problem(
    seed: int, num_layers: int, gpus: Sequence[str] = GPUS
) -> tuple[SailorModel, SailorCluster, SailorLinks]:
    """Some GPU types, degrees 1 and 2, micro-batches of 1 and 2; memory may be tight."""
    rng = np.random.default_rng(seed)
    times = {
        SailorShape(gpu, size, degree): tuple(
            SailorLayerTimes(*(rng.uniform(0.1, 1, 3) / degree)) for _ in range(num_layers)
        )
        for gpu, size, degree in itertools.product(gpus, SIZES, DEGREES)
    }
    layers = [rng.integers(10**7, 10**8, 3) for _ in range(num_layers)]
    sizes = {
        degree: tuple(
            SailorLayerSizes(int(row[0]) // degree, int(row[1]), int(row[2])) for row in layers
        )
        for degree in DEGREES
    }
    ends = [SailorEnd(gpu, count, ZONE) for gpu in gpus for count in DEGREES]
    links = {
        pair: SailorLink((0.0, float(rng.uniform(0, 0.1)), float(rng.uniform(0.5, 5))), 1e10)
        for pair in itertools.product(ends, ends)
    }
    node_types = {gpu: SailorNodeType(2, int(rng.uniform(5e9, 2e10))) for gpu in gpus}
    model = SailorModel("random", times, sizes)
    return model, SailorCluster(ZONE, node_types), SailorLinks("random", links)


def racks(bandwidth_gb: float) -> tuple[SailorModel, SailorCluster, SailorLinks]:
    """Eight equal layers on A100 and V100, three times as slow; one link between their racks.

    Args:
        bandwidth_gb: GB/s of that link; a rack's own have 10.
    """
    seconds = {"A100": 0.01, "V100": 0.03}
    times = {
        SailorShape(gpu, 1, 1): (SailorLayerTimes(own, 2 * own, 1e-3),) * 8
        for gpu, own in seconds.items()
    }
    # 100 MB cross a cut, and the model's gradients are 320 MB.
    sizes = (SailorLayerSizes(10_000_000, 25_000_000, 25_000_000),) * 8
    links = {
        (SailorEnd(one, 1, ZONE), SailorEnd(two, 1, ZONE)): SailorLink(
            (0.0, 0.0, 10.0 if one == two else bandwidth_gb), 1e10
        )
        for one, two in itertools.product(seconds, repeat=2)
    }
    nodes = {"A100": SailorNodeType(8, 40 * 10**9), "V100": SailorNodeType(8, 16 * 10**9)}
    model = SailorModel("eight", times, {1: sizes})
    return model, SailorCluster(ZONE, nodes), SailorLinks("racks", links)


def renamed_twin(
    model: SailorModel, cluster: SailorCluster, links: SailorLinks, gpu: str, name: str
) -> tuple[SailorModel, SailorCluster, SailorLinks]:
    """The same problem in which a GPU type has a second name."""
    times = {
        shape._replace(gpu=known): layers
        for shape, layers in model.times.items()
        for known in ((gpu, name) if shape.gpu == gpu else (shape.gpu,))
    }
    tables = {
        (sender._replace(gpu=first), receiver._replace(gpu=second)): link
        for (sender, receiver), link in links.links.items()
        for first in ((gpu, name) if sender.gpu == gpu else (sender.gpu,))
        for second in ((gpu, name) if receiver.gpu == gpu else (receiver.gpu,))
    }
    return (
        SailorModel(model.name, times, model.sizes),
        SailorCluster(cluster.zone, {**cluster.node_types, name: cluster.node_types[gpu]}),
        SailorLinks(links.source, tables),
    )


def all_plans(
    num_layers: int, num_gpus: Mapping[str, int], global_batch_size: int
) -> Iterator[SailorPlan]:
    """Every plan with one GPU type and degree for each stage and equal replicas."""
    groups = [SailorGroup(gpu, degree, ZONE) for gpu in num_gpus for degree in DEGREES]
    for count in range(1, num_layers + 1):
        for cuts in itertools.combinations(range(1, num_layers), count - 1):
            for chosen in itertools.product(groups, repeat=count):
                needed = {
                    gpu: sum(group.tensor_parallel for group in chosen if group.gpu == gpu)
                    for gpu in num_gpus
                }
                for replicas in range(1, sum(num_gpus.values()) + 1):
                    if any(replicas * needed[gpu] > num_gpus[gpu] for gpu in num_gpus):
                        break
                    stages = tuple(
                        SailorStage(first, end, (group,) * replicas)
                        for group, first, end in zip(
                            chosen, (0, *cuts), (*cuts, num_layers), strict=True
                        )
                    )
                    for size in SIZES:
                        yield SailorPlan(stages, size, global_batch_size)
