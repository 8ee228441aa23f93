"""The network in torch and the policy in NumPy are one function; files are checked."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from heterps_agents.learned.policy import Policy
from heterps_agents.training.network import FORBIDDEN_LOGIT, CandidateScorer
from heterps_configs.errors import HeterpsError
from heterps_envs.environments.stage.pool import ProblemPool
from heterps_envs.environments.stage.state import NUM_CANDIDATE_FEATURES, NUM_GLOBAL_FEATURES
from heterps_envs.environments.stage.vector_env import StagePlacementVecEnv
from heterps_envs.problem_sets.chains import generate


@pytest.fixture(scope="module")
def observations() -> NDArray[np.float32]:
    pool = ProblemPool.from_tables(generate(32, seed=1))
    return StagePlacementVecEnv(pool, num_envs=64, seed=0).reset()


@pytest.fixture
def scorer() -> CandidateScorer:
    torch.manual_seed(0)
    return CandidateScorer(hidden=64)


def exported(scorer: CandidateScorer) -> Policy:
    return Policy({name: value.numpy() for name, value in scorer.state_dict().items()}, {"seed": 0})


def split(observations: NDArray[np.float32]) -> tuple[NDArray[Any], ...]:
    """Candidates that are allowed, the state, and rows and actions of the candidates."""
    grid = observations[:, :-NUM_GLOBAL_FEATURES].reshape(
        len(observations), -1, NUM_CANDIDATE_FEATURES
    )
    row, action = map(np.ascontiguousarray, np.nonzero(grid[:, :, 0] > 0.5))
    return grid[row, action], observations[:, -NUM_GLOBAL_FEATURES:], row, action


def test_numpy_and_torch_agree(scorer: CandidateScorer, observations: NDArray[np.float32]) -> None:
    candidates, state, row, action = split(observations)
    policy = exported(scorer)
    with torch.no_grad():
        logits, values = scorer(torch.from_numpy(observations))
    expected = torch.log_softmax(logits, dim=1).numpy()
    np.testing.assert_allclose(
        policy.log_probabilities(candidates, state, row), expected[row, action], atol=1e-5
    )
    np.testing.assert_allclose(policy.values(candidates, state, row), values.numpy(), atol=1e-5)
    allowed = np.zeros(logits.shape, bool)
    allowed[row, action] = True
    assert (logits.numpy()[~allowed] == FORBIDDEN_LOGIT).all()


def test_the_order_of_candidates_does_not_matter(
    scorer: CandidateScorer, observations: NDArray[np.float32]
) -> None:
    candidates, state, row, _ = split(observations[:1])
    policy, order = exported(scorer), np.random.default_rng(0).permutation(len(row))
    straight = policy.log_probabilities(candidates, state, row)
    np.testing.assert_allclose(
        policy.log_probabilities(candidates[order], state, row), straight[order], atol=1e-5
    )


def test_the_network_is_small(scorer: CandidateScorer) -> None:
    assert exported(scorer).num_parameters < 50_000


def test_a_policy_survives_its_file(
    scorer: CandidateScorer, observations: NDArray[np.float32], tmp_path: Path
) -> None:
    policy, path = exported(scorer), tmp_path / "policy.npz"
    policy.save(path)
    loaded = Policy.load(path)
    assert loaded.meta["seed"] == 0
    candidates, state, row, _ = split(observations)
    np.testing.assert_array_equal(
        loaded.log_probabilities(candidates, state, row),
        policy.log_probabilities(candidates, state, row),
    )


def test_a_policy_for_other_features_is_refused(scorer: CandidateScorer, tmp_path: Path) -> None:
    policy, path = exported(scorer), tmp_path / "old.npz"
    weights: dict[str, Any] = dict(policy.weights)
    np.savez(path, meta=np.array(json.dumps({"feature_version": 0})), **weights)
    with pytest.raises(HeterpsError, match="trained on features of version 0"):
        Policy.load(path)


@pytest.mark.parametrize("content", [b"", b"no policy", b"PK\x03\x04 broken"])
def test_a_file_that_is_no_policy_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "broken.npz"
    path.write_bytes(content)
    with pytest.raises(HeterpsError, match="is not a policy"):
        Policy.load(path)


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(HeterpsError, match="generalst"):
        Policy.load("generalst")


def test_inference_needs_neither_torch_nor_sb3() -> None:
    script = (
        "import heterps_agents.learned.planner, sys;"
        "print({'torch', 'stable_baselines3'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"
