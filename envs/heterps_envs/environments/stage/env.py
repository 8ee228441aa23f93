"""`heterps/StagePlacement-v0`: places a chain of layers stage by stage, the last stage first."""

from __future__ import annotations

from collections.abc import Sequence

from heterps_envs.cost_tables import CostTables
from heterps_envs.environments.base.env import PlacementEnv
from heterps_envs.environments.stage.episodes import StageEpisodes
from heterps_envs.environments.stage.pool import TARGET_RANGE, ProblemPool
from heterps_envs.problem_sets.chains import generate


class StagePlacementEnv(PlacementEnv):
    """Places a chain of layers on device classes so that one training step is short.

    ## Description
    An episode is one problem (model profile, cluster, job), a *target*: seconds that no stage may
    be busy beyond the fill of the pipeline behind it, and a *fill limit*
    (`heterps_envs.environments.stage.state`). Each action puts one more stage in front of those
    built so far. The stage takes as many layers as target, fill limit, memory and links allow or,
    by another action, ends at the earlier cut that leaves the shortest fill. Going from the back to
    the front makes the micro-batches that a stage must hold, and so its memory, known when it is
    built: an allowed action never breaks memory, and leaves no layer in front that fits nowhere.

    ## Action space
    `Discrete(max_classes * 16)`; action `8 * c + b` is the longest stage on class c with the
    replicas of rung b, action `8 * (max_classes + c) + b` the one that ends earlier. With up to
    eight free devices of the class, rung b is b + 1 replicas. With more, the rungs grow by a
    factor, the last one is all that are free, and each of the others is lowered to the least number
    that reaches as far.

    `action_masks()` says which are allowed; `info["action_mask"]` is the same. An action that is
    not allowed ends the episode as stuck.

    ## Observation space
    `Box(-4, 4, (max_classes * 16 * 33 + 13,), float32)`: 33 features of each action in order (zero
    where it is not allowed), then 13 of the state. *Price* is the LP-dual price of a device-second,
    *value* what layers cost at those prices, *allowance* target plus fill so far.

    | candidate feature | |
    | --- | --- |
    | 0 | allowed |
    | 1, 9, 10 | share of the value covered; share of the layers; covers all the rest |
    | 2, 3 | value covered over price paid; price paid over price of the free devices |
    | 4, 5, 13 | devices of the class left (share); log2(replicas) / 4; log(1 + devices) / 3 |
    | 6, 18 | time used and fill added, over the allowance |
    | 7, 20, 22, 23 | memory used; memory stops the growth; taken of the free; used of it |
    | 8, 11, 29, 14 | link behind, best link and message in front (allowance); same class behind |
    | 12, 21, 24, 26 | left to do over what is left: value, memory, least fill (allowance, limit) |
    | 15, 19 | how badly the layers suit the class: by price, by speed |
    | 16, 17, 27 | waste of an uneven share; shares of all-reduce + optimizer, and of waiting |
    | 30, 28 | further round trips in front over the target; replicas so far / micro-batches |
    | 25 | log(least step time that is still possible / lower bound) |
    | 31 | ends at the earlier cut |
    | 32 | the layer left that is hardest to place: its share of the memory where it fits best |

    | state feature | |
    | --- | --- |
    | 0, 1, 2 | value left, layers left (shares); log2(1 + stages) / 4 |
    | 3, 8, 9, 12 | left to do over what is left: value, memory, least fill (allowance, limit) |
    | 4, 7 | log(target / lower bound); fill over target |
    | 5, 6, 10, 11 | classes / 8; replicas behind / micro-batches; log2(micro-batches) / 8; GPipe |

    ## Rewards
    0 until the end. All layers placed: `1 + 2 log(best known step time / step time)`, at least 0.1.
    Stuck: the share of the value that was covered, minus 1.

    ## Starting state
    A problem of the pool at random; a target drawn from `target_range` times the bottleneck of its
    best known placement, mostly near the lower end, and one in ten up to three times as large; a
    fill limit that allows 1.0005 to 1.12 times its step time, or none (25 %).
    `reset(options={"problem": i, "target_s": seconds, "fill_limit_s": seconds})` chooses them.

    ## Episode end
    Terminated when all layers are placed (`info["step_time_s"]` and `info["code"]` describe the
    placement) or no action is allowed. Never truncated.

    ## Arguments
    `problems`: cost tables to draw from; by default 64 random ones
    (`heterps_envs.problem_sets.chains`). `max_classes`: device classes that observations and
    actions have room for. `target_range`: targets, as multiples of the bottleneck of the best known
    placement. `pool`: a `ProblemPool` instead of all these. `render_mode`: "rgb_array" lets
    `render()` draw the placement so far.

    ## Version history
    * v0: first version. With features of version 5: rungs of replicas for any number of devices
      (fixed numbers up to 16 before), replicas and stages by their logarithms. With version 7:
      stages wait for gradients only where memory has no room for more micro-batches.
    """

    def __init__(
        self,
        problems: Sequence[CostTables] | None = None,
        max_classes: int = 8,
        target_range: tuple[float, float] = TARGET_RANGE,
        pool: ProblemPool | None = None,
        render_mode: str | None = None,
    ) -> None:
        if pool is None:
            tables = generate(64, seed=0) if problems is None else problems
            pool = ProblemPool.from_tables(tables, max_classes, target_range)
        super().__init__(StageEpisodes(pool, 1), render_mode)
