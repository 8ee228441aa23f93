"""`heterps/GraphPlacement-v0`: places a graph of layers or operators node by node on devices."""

from __future__ import annotations

from collections.abc import Sequence

from heterps_envs.environments.base.env import PlacementEnv
from heterps_envs.environments.graph.episodes import GraphEpisodes
from heterps_envs.environments.graph.pool import GraphPool
from heterps_envs.graphs.problem import GraphTables
from heterps_envs.problem_sets.graphs import generate_graphs


class GraphPlacementEnv(PlacementEnv):
    """Places a graph on concrete devices so that one step of it is short.

    ## Description
    An episode is one problem: a directed acyclic graph whose nodes take seconds and bytes, and
    devices with memory and links between them. Nodes come in topological order; each action gives
    the next one a device. The step that results is simulated (`heterps_envs.graphs.simulator`): all
    forward passes in order, then all backward passes in reverse order; each edge between devices
    moves an output there and a gradient back, and transfers of one channel wait for each other
    (inside a host each device sends through a channel of its own, between hosts all devices of a
    host share its network card). An inference graph ends with its forward passes.

    ## Action space
    `Discrete(max_devices)`: the device of the next node. `action_masks()` says which are allowed;
    `info["action_mask"]` is the same: devices that can run the node and have memory left for it,
    so that an allowed action never breaks memory; and of these those after which the nodes left can
    still be packed, the largest first, if there is any (`heterps_envs.environments.graph.fit`). An
    action that is not allowed ends the episode as stuck.

    ## Observation space
    `Box(-4, 4, (max_devices * 28 + 18,), float32)`: 28 features of each device in order (zero where
    it is not allowed), then 18 of the state. Times are shares of the earliest-finish step time;
    "seconds" are forward plus backward. The *way through* a node: its forward pass ends, the
    optimistic round trip from there to the end of the graph and back
    (`heterps_envs.environments.graph.guides`), its backward pass, and the way back to the end of
    the step along the devices chosen.

    | device feature | |
    | --- | --- |
    | 0 | allowed |
    | 2, 1, 17 | the forward pass would end; 4 x later than on the best device; is the best |
    | 4, 3 | 8 x seconds of the node; log(seconds / least seconds) |
    | 5, 6, 18 | way through; 4 x longer than on the best device; is the best |
    | 19 | backward pass and way back: 4 x longer than on the best device |
    | 27, 26 | way through if all that follows stays on the device; what staying costs |
    | 7, 8 | load with the node; 2 x above the largest load |
    | 24, 25 | the device is free; 2 x later than the last device |
    | 9, 10 | 8 x idle time before the node; 8 x backlog of its outgoing channels after it |
    | 12, 15 | 4 x transfers of the node's inputs; 4 x of its output, to a mean device |
    | 23 | busiest outgoing channel's load |
    | 13, 20 | share of the input bytes there; of what the node's readers read besides |
    | 14, 21 | seconds of all later nodes on the device / devices; log of them over the least |
    | 11, 16, 22 | memory: share used with the node; free over still needed; share of all x D / 4 |

    | state feature | |
    | --- | --- |
    | 0, 7, 6 | share of the nodes placed; nodes / 64; devices / 8 |
    | 1, 2, 3 | earliest end of the node; least way through it; longest through a placed one |
    | 4, 5 | nodes that it reads / 4; nodes that read it / 4 |
    | 8, 9, 10 | memory: of the node over 4 x mean; needed over all; still needed over free |
    | 11, 12 | largest load; least seconds of the nodes left / devices |
    | 15, 17 | load of the busiest channel; the last device is free |
    | 13, 14 | 4 x mean transfer of the output; forward share of the seconds |
    | 16 | hosts that have a network card in use / 4 |

    The features of a node that do not change (`pool.guides.node_features`, 14 each) are for message
    passing: 8 x mean and 8 x least seconds, log(most / least), forward share, 4 x transfer, memory
    over 4 x mean, memory over half of a mean device's, ways to the end and from the begin, slack,
    nodes read / 4, readers / 4, position, share of devices that can run it.

    ## Rewards
    0 until the end. All nodes placed: `log(earliest-finish step time / step time)`, at least -1.
    Stuck: -1 minus the share of the nodes that have no device.

    ## Starting state
    A problem of the pool at random, nothing placed. `reset(options={"problem": i})` chooses it.

    ## Episode end
    Terminated when all nodes are placed (`info["step_time_s"]` and `info["devices"]` describe the
    placement) or no device can take the next one. Never truncated.

    ## Arguments
    `problems`: graphs to draw from; by default 64 random ones (`heterps_envs.problem_sets.graphs`).
    `max_devices`: devices that observations and actions have room for, at most 16.
    `pool`: a `GraphPool` instead of both.
    `render_mode`: "rgb_array" lets `render()` draw the placement so far.

    ## Version history
    * v0: first version.
    """

    def __init__(
        self,
        problems: Sequence[GraphTables] | None = None,
        max_devices: int = 8,
        pool: GraphPool | None = None,
        render_mode: str | None = None,
    ) -> None:
        if pool is None:
            tables = generate_graphs(64, seed=0) if problems is None else problems
            pool = GraphPool.from_tables(tables, max_devices=max_devices)
        super().__init__(GraphEpisodes(pool, 1), render_mode)
