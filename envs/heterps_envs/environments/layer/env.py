"""`heterps/LayerPlacement-v0`: device classes for a chain of layers, the first layer first."""

from __future__ import annotations

from collections.abc import Sequence

from heterps_configs.errors import HeterpsError
from heterps_envs.cost_tables import CostTables
from heterps_envs.environments.base.env import PlacementEnv
from heterps_envs.environments.layer.episodes import LayerEpisodes
from heterps_envs.environments.layer.pool import LayerPool
from heterps_envs.problem_sets.chains import generate

# What arguments that a pool decides on are when nobody gives them.
_OF_A_POOL = (None, "throughput", None, False)


class LayerPlacementEnv(PlacementEnv):
    """Gives each layer of a chain a device class so that one training step is short, or cheap.

    ## Description
    The sequence of decisions of HeterPS (Liu et al., FGCS 148, 2023). An episode is one problem
    (model profile, cluster, job). From the first layer to the last, each gets a device class.
    Consecutive layers of one class form a stage. When all layers have a class, a fixed rule gives
    the stages their replicas (`heterps_envs.environments.layer.provisioning`), and the closed form
    gives the step time. A class can begin as many stages as it has devices. As we read HeterPS, a
    stage ends only where the class changes; `with_cuts=True` lets it end elsewhere too. Replicas,
    costs and observations are ours.

    ## Action space
    `Discrete(max_classes)`, or `Discrete(2 * max_classes)` with cuts:

    | action | |
    | --- | --- |
    | c | the next layer gets class c; if the layer before has it too, both are in one stage |
    | max_classes + c | with cuts: it gets class c as the layer before, but in another stage |

    `action_masks()` says which are allowed; `info["action_mask"]` is the same. The layer must go on
    with the stage of the layer before it, or the class have a device without a stage; and the stage
    with this layer may fit into the memory of one device. An action that is not allowed ends the
    episode as stuck.

    ## Observation space
    `Box(-4, 4, (actions * 14 + 14,), float32)`: 14 features of each action in order (zero where it
    is not allowed), then 14 of the state. All are ratios without units. *Work* is seconds on the
    class times micro-batches; *bound* the lower bound of the step time; *value* what layers cost at
    the LP-dual prices of the classes.

    | action feature | |
    | --- | --- |
    | 0, 1 | allowed; goes on with the stage of the layer before |
    | 2, 3 | seconds of the layer: on its fastest class over here; work over bound |
    | 4 | work of the stage with the layer, on all devices that it may still get, over bound |
    | 5 | work of all layers given to the class and of this one, on all its devices, over bound |
    | 6 | work of all layers left, on the devices without a stage, over bound |
    | 7, 8 | devices without a stage (share of the class); log(1 + devices) / 3 |
    | 9, 10 | least memory of the stage with the layer, and of the layer, over a device's |
    | 11, 12 | the cut before the layer: all messages; one there and back (over bound) |
    | 13 | price of a device over that of the dearest |

    | state feature | |
    | --- | --- |
    | 0, 1 | index of the layer / layers; log2(layers) / 8 |
    | 2, 3, 4, 5 | value, state, activations, output of the layer over those of an average layer |
    | 6 | bytes at the cut before the layer over those at the largest cut |
    | 7, 8 | value of the layers before (share); stages / 8 |
    | 9, 10, 11 | classes / 8; log2(micro-batches) / 8; GPipe |
    | 12, 13 | the objective is price; bound over the floor (0 without one) |

    ## Rewards
    0 until the end. With all layers placed, *cost* is the step time or, for the objective price,
    price per hour times step time, and the *reference* the cost of the placement that the greedy
    rule of stage placement finds (without one: of the bound on all devices):

    | end | reward |
    | --- | --- |
    | the placement fits | log(reference / cost), at least -3 |
    | it misses the floor | -3 - (1 - floor / step time) |
    | it lacks memory, x devices' worth of it | -4 - x / (1 + x) |
    | stuck: no class is allowed | -5 - share of the layers that have no class |

    ## Starting state
    A problem of the pool at random, no layer placed. `reset(options={"problem": i, "floor_s":
    seconds})` chooses the problem, and the longest step that is allowed.

    ## Episode end
    Terminated when all layers have a class or none is allowed for the next one. `info["verdict"]`
    says how: "fits", "misses the floor", "out of memory" or "stuck". All but the last come with
    `info["step_time_s"]`, `info["price_usd_per_hour"]` and `info["code"]`. Never truncated.

    ## Arguments
    `problems`: cost tables to draw from; by default 64 random ones
    (`heterps_envs.problem_sets.chains`). `max_classes`: device classes that observations and
    actions have room for. `objective`: "throughput" or "price". `longest_step`: the floor: how many
    times as long as the reference's a step may be; by default no floor for throughput, and 1.5 for
    price. `with_cuts`: stages may end where the class goes on. `pool`: a `LayerPool` instead of all
    these. `render_mode`: "rgb_array" lets `render()` draw the placement so far.

    ## Version history
    * v0: first version.
    """

    def __init__(
        self,
        problems: Sequence[CostTables] | None = None,
        max_classes: int = 8,
        objective: str = "throughput",
        longest_step: float | None = None,
        with_cuts: bool = False,
        pool: LayerPool | None = None,
        render_mode: str | None = None,
    ) -> None:
        if pool is not None and (problems, objective, longest_step, with_cuts) != _OF_A_POOL:
            raise HeterpsError(
                "a pool has problems, objective, longest_step and with_cuts of its own; give them "
                "to LayerPool.from_tables"
            )
        if pool is None:
            tables = generate(64, seed=0) if problems is None else problems
            pool = LayerPool.from_tables(
                tables, max_classes, objective, longest_step, with_cuts=with_cuts
            )
        super().__init__(LayerEpisodes(pool, 1), render_mode)
