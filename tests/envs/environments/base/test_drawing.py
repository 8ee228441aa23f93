"""Pictures of placements: they follow the episode, and say what is missing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.wrappers import RenderCollection
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from heterps_configs.errors import HeterpsError
from heterps_envs.environments.base import drawing as rendering
from heterps_envs.environments.base.chain_drawing import (
    HEIGHT,
    WIDTH,
    ChainPicture,
    DrawnStage,
    draw_chain,
)
from heterps_envs.environments.base.vector_env import NativeVecEnv
from heterps_envs.environments.graph.drawing import edge_lines, node_places
from heterps_envs.environments.graph.env import GraphPlacementEnv
from heterps_envs.environments.graph.pool import GraphPool
from heterps_envs.environments.graph.vector_env import GraphPlacementVecEnv
from heterps_envs.environments.layer.env import LayerPlacementEnv
from heterps_envs.environments.layer.pool import LayerPool
from heterps_envs.environments.layer.vector_env import LayerPlacementVecEnv
from heterps_envs.environments.stage.env import StagePlacementEnv
from heterps_envs.environments.stage.pool import ProblemPool
from heterps_envs.environments.stage.vector_env import StagePlacementVecEnv
from heterps_envs.problem_sets.chains import generate
from heterps_envs.problem_sets.graphs import generate_graphs

Make = Callable[[str | None], gym.Env[Any, Any]]
SINGLE: dict[str, Make] = {
    "stage": lambda mode: StagePlacementEnv(generate(4, seed=9), render_mode=mode),
    "layer": lambda mode: LayerPlacementEnv(generate(4, seed=9), render_mode=mode),
    "graph": lambda mode: GraphPlacementEnv(generate_graphs(4, seed=9), render_mode=mode),
}
VECTOR: dict[str, Callable[[str | None], NativeVecEnv]] = {
    "stage": lambda mode: StagePlacementVecEnv(
        ProblemPool.from_tables(generate(4, seed=9)), 3, render_mode=mode
    ),
    "layer": lambda mode: LayerPlacementVecEnv(
        LayerPool.from_tables(generate(4, seed=9)), 3, render_mode=mode
    ),
    "graph": lambda mode: GraphPlacementVecEnv(
        GraphPool.from_tables(generate_graphs(4, seed=9)), 3, render_mode=mode
    ),
}


def picture_of(env: gym.Env[Any, Any]) -> NDArray[np.uint8]:
    picture = env.render()
    assert isinstance(picture, np.ndarray)
    return picture


@pytest.mark.slow
@pytest.mark.parametrize("name", SINGLE)
def test_a_picture_shows_every_step_of_an_episode(name: str) -> None:
    env = SINGLE[name]("rgb_array")
    assert env.metadata["render_modes"] == ["rgb_array"]
    _, info = env.reset(seed=3)
    pictures = [picture_of(env)]
    for _ in range(3):
        _, _, terminated, _, info = env.step(int(np.argmax(info["action_mask"])))
        pictures.append(picture_of(env))
        if terminated:
            break
    for picture in pictures:
        assert picture.dtype == np.uint8
        assert picture.ndim == 3
        assert picture.shape[2] == 3
        assert picture.min() < 60  # text
        assert (picture == 255).mean() > 0.4  # paper
    for before, after in pairwise(pictures):
        assert not np.array_equal(before, after)


def test_wrappers_of_gymnasium_collect_the_pictures() -> None:
    env = RenderCollection(SINGLE["layer"]("rgb_array"))
    _, info = env.reset(seed=3)
    env.step(int(np.argmax(info["action_mask"])))
    assert len(env.render()) == 2


@pytest.mark.slow
@pytest.mark.parametrize("name", VECTOR)
def test_native_environments_draw_each_episode(name: str) -> None:
    env = VECTOR[name]("rgb_array")
    env.reset()
    images = env.get_images()
    assert len(images) == 3
    tiled = env.render()
    assert tiled is not None
    assert images[0] is not None
    assert tiled.shape == (2 * images[0].shape[0], 2 * images[0].shape[1], 3)


@pytest.mark.parametrize("name", SINGLE)
def test_nothing_is_drawn_without_a_render_mode(name: str) -> None:
    env = SINGLE[name](None)
    env.reset(seed=0)
    assert env.render() is None
    assert list(VECTOR[name](None).get_images()) == [None] * 3


@pytest.mark.parametrize("name", SINGLE)
def test_other_render_modes_are_refused(name: str) -> None:
    with pytest.raises(HeterpsError, match="no render mode 'human'; allowed: \"rgb_array\" or Non"):
        SINGLE[name]("human")
    with pytest.raises(HeterpsError, match="no render mode 'human'"):
        VECTOR[name]("human")


def test_a_missing_matplotlib_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(HeterpsError, match="draws with matplotlib, which is not installed: pip"):
        SINGLE["layer"]("rgb_array")
    assert SINGLE["layer"](None).render() is None


def test_environments_that_draw_nothing_do_not_import_matplotlib() -> None:
    script = (
        "import sys, heterps_envs.environments.layer.env, heterps_envs.environments.stage.env, "
        "heterps_envs.environments.graph.env; print('matplotlib' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"


def test_stages_are_drawn_in_the_colours_of_their_classes() -> None:
    def picture(kind: int) -> NDArray[np.uint8]:
        return draw_chain(
            ChainPicture(
                title="test",
                layer_values=np.ones(4),
                stages=[DrawnStage(0, 4, kind, 2, 1.0, np.inf, 0.5)],
                next_layer=-1,
                device_count=np.array([2, 2]),
                memory_bytes=np.ones(2),
                lines_s={"floor": 2.0, "reference": np.inf},
                note="",
            )
        )

    for kind in (0, 1):
        image = picture(kind)
        assert image.shape == (HEIGHT, WIDTH, 3)
        shares = [
            (image == np.array(list(bytes.fromhex(rendering.colour(each)[1:])))).all(axis=2).mean()
            for each in (0, 1)
        ]
        assert shares[kind] > 0.1
        assert shares[1 - kind] == 0


@given(st.integers(0, 10_000), st.integers(1, 90), st.floats(0, 0.4))
def test_no_two_nodes_of_a_graph_are_drawn_in_one_place(
    seed: int, nodes: int, density: float
) -> None:
    rng = np.random.default_rng(seed)
    edges = [
        (producer, consumer)
        for consumer in range(nodes)
        for producer in range(consumer)
        if rng.random() < density / (1 + 0.1 * (consumer - producer))
    ]
    ends = np.array(edges, np.int64).reshape(-1, 2)
    places = node_places(nodes, ends[:, 0], ends[:, 1])
    assert np.isfinite(places).all()
    assert len(np.unique(places.round(6), axis=0)) == nodes
    lines = edge_lines(places, ends[:, 0], ends[:, 1])
    np.testing.assert_allclose(lines[:, 0], places[ends[:, 0]], atol=1e-12)
    np.testing.assert_allclose(lines[:, -1], places[ends[:, 1]], atol=1e-12)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(12.34, "12.3 s"), (0.5, "500 ms"), (2e-6, "2 us"), (3e-9, "3 ns"), (np.inf, "none")],
)
def test_seconds_have_a_unit_that_suits_them(seconds: float, text: str) -> None:
    assert rendering.seconds_text(seconds) == text
