"""`heterps/PricedStagePlacement-v0`: stage placement under a limit on the price of the devices."""

from __future__ import annotations

from collections.abc import Sequence

from heterps_envs.cost_tables import CostTables
from heterps_envs.environments.base.env import PlacementEnv
from heterps_envs.environments.stage.episodes import StageEpisodes
from heterps_envs.environments.stage.priced_pool import PricedObjective, PricedPool
from heterps_envs.problem_sets.chains import generate


class PricedStagePlacementEnv(PlacementEnv):
    """Places a chain of layers so that a training step is cheap, or short for what it may cost.

    ## Description
    As `heterps/StagePlacement-v0`, and an episode has a third limit beside target and fill limit:
    US dollars per hour that all devices used may cost together. Target and fill limit say how long
    a step may take, so with the objective `price` this is the cheapest sample under a throughput
    floor, and with the objective `budget` the highest throughput under a budget.

    ## Action space
    As in StagePlacement. Not allowed is also a stage whose devices cost more than is left, or leave
    less than the layers in front of it must cost.

    ## Observation space
    `Box(-4, 4, (max_classes * 16 * 37 + 17,), float32)`: 37 features of each action, of which the
    first 33 are those of StagePlacement, then 17 of the state, of which the first 13 are. *Dollars*
    of layers are price times seconds where that is least; *left* is what is left of the limit. All
    further features are 0 without a limit.

    | candidate feature | |
    | --- | --- |
    | 33 | price of the devices over what is left |
    | 34 | dollars of the layers in front, over what is left then, times the allowance |
    | 35 | dollars covered over the price of the devices times the allowance |
    | 36 | how badly the layers suit the class by dollars |

    | state feature | |
    | --- | --- |
    | 13 | there is a limit |
    | 14 | dollars of all that is to be placed, over what is left times the allowance |
    | 15 | share of the limit that is left |
    | 16 | log(limit times target / dollars of all layers) |

    ## Rewards
    0 until the end. All layers placed: `1 + 2 log(best / cost)`, from 0.1 to 2. The cost is price
    times step time (`price`) or step time (`budget`, and without a limit); the best is that of the
    best anchor that keeps the limits. Stuck: the share of the value that was covered, minus 1.

    ## Starting state
    A problem of the pool at random, and one of its anchors: placements that no other beats in both
    step time and price. Target and fill limit are drawn around the anchor as in StagePlacement; the
    limit is the anchor's price (40 %), up to 30 % more, or none (20 %).
    `reset(options={"problem": i, "target_s": seconds, "fill_limit_s": seconds,
    "price_limit_usd_per_hour": dollars})` chooses them.

    ## Episode end
    As in StagePlacement; `info` has `price_limit_usd_per_hour` too, and at the end of a placement
    `price_usd_per_hour` of its devices.

    ## Arguments
    `problems`: cost tables to draw from; by default 64 random ones. Their only anchor is the
    placement that the greedy rule finds.
    `max_classes`: device classes that observations and actions have room for.
    `objective`: what rewards compare, "price" or "budget".
    `pool`: a `heterps_envs.environments.stage.priced_pool.PricedPool` instead of all these, with
    better anchors (those of training are exact). `render_mode`: "rgb_array" lets `render()` draw
    the placement so far.

    ## Version history
    * v0: first version: `heterps/StagePlacement-v0` with a limit on the price.
    """

    def __init__(
        self,
        problems: Sequence[CostTables] | None = None,
        max_classes: int = 8,
        objective: PricedObjective = "price",
        pool: PricedPool | None = None,
        render_mode: str | None = None,
    ) -> None:
        if pool is None:
            tables = generate(64, seed=0) if problems is None else problems
            pool = PricedPool.from_tables(tables, max_classes, objective=objective)
        super().__init__(StageEpisodes(pool, 1, with_prices=True), render_mode)
