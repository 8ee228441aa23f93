"""`heterps/StagePlacement-v0`: places a chain of layers stage by stage, the last stage first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from heterps_configs.errors import HeterpsError
from heterps_envs.environments.base.drawing import Image, check_render_mode
from heterps_envs.environments.stage.episodes import (
    LARGEST_OBSERVATION,
    StageEpisodes,
    observation_size,
)
from heterps_envs.environments.stage.pictures import draw_stages
from heterps_envs.environments.stage.pool import TARGET_RANGE, ProblemPool
from heterps_envs.environments.stage.state import COMPLETE, num_actions
from heterps_envs.problem import CostTables
from heterps_envs.problem_sets.chains import generate

Observation = NDArray[np.float32]


class StagePlacementEnv(gym.Env[Observation, np.int64]):
    """Places a chain of layers on device classes so that one training step is short.

    ## Description
    An episode is one problem (model profile, cluster, job), a *target*: seconds that no stage may
    be busy beyond the fill of the pipeline behind it, and a *fill limit*
    (`heterps_envs.environments.stage.state`). Each action puts one more stage in front of those
    built so far. The stage takes as many layers as target, fill limit, memory and links allow or,
    by another action, ends at the earlier cut that leaves the shortest fill. Going from the back to
    the front makes the micro-batches in flight, and so the memory of a stage, known when it is
    built: an allowed action never breaks memory, and leaves no layer in front that fits nowhere.

    ## Action space
    `Discrete(max_classes * 16)`; action `8 * c + b` is the longest stage on class c with
    `REPLICA_BUCKETS[b]` replicas, action `8 * (max_classes + c) + b` the one that ends earlier:

    | b | 0 | 1 | 2 | 3 | 4 | 5 | 6 | 7 |
    | --- | --- | --- | --- | --- | --- | --- | --- | --- |
    | replicas | 1 | 2 | 3 | 4 | 6 | 8 | 12 | 16 |

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
    | 4, 5, 13 | devices of the class left (share); replicas / 8; log(1 + devices) / 3 |
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
    | 0, 1, 2 | value left, layers left (shares); stages / 8 |
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
    * v0: first version. With features of version 3, actions that end at an earlier cut, candidate
      features 31 and 32, and targets nearer to the best known placement.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012 (Gymnasium's own declaration)
        "render_modes": ["rgb_array"],
        "render_fps": 4,
    }

    def __init__(
        self,
        problems: Sequence[CostTables] | None = None,
        max_classes: int = 8,
        target_range: tuple[float, float] = TARGET_RANGE,
        pool: ProblemPool | None = None,
        render_mode: str | None = None,
    ) -> None:
        check_render_mode(render_mode)
        self.render_mode = render_mode
        if pool is None:
            tables = generate(64, seed=0) if problems is None else problems
            pool = ProblemPool.from_tables(tables, max_classes, target_range)
        self._begin_with(pool, with_prices=False)

    def _begin_with(self, pool: ProblemPool, with_prices: bool) -> None:
        """Sets episodes and spaces."""
        self._episodes = StageEpisodes(pool, 1, with_prices)
        classes = self._episodes.max_classes
        self.action_space = gym.spaces.Discrete(num_actions(classes))
        size = observation_size(classes, with_prices)
        self.observation_space = gym.spaces.Box(
            -LARGEST_OBSERVATION, LARGEST_OBSERVATION, (size,), np.float32
        )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begins an episode.

        Args:
            seed: Of the random choices from here on.
            options: `problem` (row) and fields of `heterps_envs.environments.stage.state.Limits`,
                all optional.

        Raises:
            HeterpsError: There is no such problem.
        """
        super().reset(seed=seed)
        pool, options = self._episodes.pool, options or {}
        problem, limits = pool.draw(self.np_random, 1)
        if "problem" in options:
            problem[0] = options["problem"]
            if not 0 <= problem[0] < pool.problems.num_problems:
                last = pool.problems.num_problems - 1
                raise HeterpsError(f"there is no problem {problem[0]}; allowed: 0 to {last}")
            limits = pool.draw_limits(self.np_random, problem)
        for name, limit in limits._asdict().items():
            limit[0] = options.get(name, limit[0])
        self._episodes.begin(np.array([0]), problem, limits)
        return self._episodes.observations()[0], self._info()

    def step(self, action: np.int64 | int) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Puts a stage in front."""
        row, finished = np.array([0]), True
        if self._episodes.view.allowed[0, action]:
            finished = len(self._episodes.step(np.array([action]))) > 0
        else:
            self._episodes.close(row)
        reward = (
            float(self._episodes.pool.rewards(self._episodes.rows, row)[0]) if finished else 0.0
        )
        if finished:
            self._episodes.pool.improve(self._episodes.rows, row)
        return self._episodes.observations()[0], reward, finished, False, self._info()

    def action_masks(self) -> NDArray[np.bool_]:
        """(actions,) which actions are allowed now."""
        return np.array(self._episodes.view.allowed[0])

    def render(self) -> Image | None:
        """The placement so far as (height, width, 3) uint8; None without a render mode."""
        return None if self.render_mode is None else draw_stages(self._episodes, 0)

    def _info(self) -> dict[str, Any]:
        rows = self._episodes.rows
        info: dict[str, Any] = {
            "action_mask": self.action_masks(),
            "problem": int(rows.problem[0]),
            "target_s": float(rows.target_s[0]),
            "fill_limit_s": float(rows.fill_limit_s[0]),
        }
        if rows.status[0] == COMPLETE:
            layers = self._episodes.pool.problems.num_layers[rows.problem[0]]
            info["step_time_s"] = float(rows.behind_s[0])
            info["code"] = rows.code[0, :layers].copy()
        return info
