"""The policy network in torch, as a policy of stable-baselines3. Inference is `policy`.

One small network scores every candidate stage, so nothing depends on how many layers, device
classes or candidates there are. Candidates see each other through the mean and maximum over all of
them (Zaheer et al., Deep Sets, 2017). Only allowed candidates are computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sb3_contrib import MaskablePPO
from sb3_contrib.common.maskable.distributions import MaskableDistribution
from sb3_contrib.common.maskable.policies import MaskableActorCriticPolicy
from stable_baselines3.common.type_aliases import GymEnv
from torch import Tensor, nn

from heterps_agents.learned.policy import Policy
from heterps_envs.environments.stage.state import feature_sizes

FORBIDDEN_LOGIT = -1e8


class CandidateScorer(nn.Module):
    """Logits of all candidates and the value of the state, from flat observations.

    Args:
        hidden: Width of all layers.
        with_prices: For observations of `heterps/PricedStagePlacement-v0`.
    """

    def __init__(self, hidden: int = 64, with_prices: bool = False) -> None:
        super().__init__()
        self.hidden = hidden
        self.candidate_features, self.state_features = feature_sizes(with_prices)
        context = 2 * hidden + self.state_features
        self.candidate_in = nn.Linear(self.candidate_features, hidden)
        self.state_in = nn.Linear(self.state_features, hidden, bias=False)
        self.candidate_hidden = nn.Linear(hidden, hidden)
        self.score_candidate = nn.Linear(hidden, hidden)
        self.score_context = nn.Linear(context, hidden, bias=False)
        self.score_out = nn.Linear(hidden, 1)
        self.value_context = nn.Linear(context, hidden)
        self.value_out = nn.Linear(hidden, 1)

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Scores candidates.

        Args:
            observations: (B, A * candidate features + state features); at least one candidate of
                each row is allowed.

        Returns:
            Logits (B, A), `FORBIDDEN_LOGIT` where not allowed, and values (B,).
        """
        batch = observations.shape[0]
        grid = observations[:, : -self.state_features].view(batch, -1, self.candidate_features)
        state = observations[:, -self.state_features :]
        row, action = torch.nonzero(grid[:, :, 0] > 0.5, as_tuple=True)
        lengths = torch.bincount(row, minlength=batch)
        hidden = torch.relu(self.candidate_in(grid[row, action]) + self.state_in(state)[row])
        hidden = torch.relu(self.candidate_hidden(hidden))
        mean = torch.segment_reduce(hidden, "mean", lengths=lengths, axis=0)
        largest = torch.segment_reduce(hidden, "max", lengths=lengths, axis=0)
        context = torch.cat([mean, largest, state], dim=1)
        scored = torch.relu(self.score_candidate(hidden) + self.score_context(context)[row])
        logits = torch.full(grid.shape[:2], FORBIDDEN_LOGIT)
        logits = logits.index_put((row, action), self.score_out(scored).squeeze(1))
        value = self.value_out(torch.relu(self.value_context(context))).squeeze(1)
        return logits, value


class StagePolicy(MaskableActorCriticPolicy):
    """`CandidateScorer` as the policy of `sb3_contrib.MaskablePPO`.

    The observation itself says which candidates are allowed; a mask can only forbid more.

    Args:
        hidden: Width of the network.
        with_prices: For observations of `heterps/PricedStagePlacement-v0`.
        arguments: As for `MaskableActorCriticPolicy`.
        keywords: The same.
    """

    def __init__(
        self, *arguments: Any, hidden: int = 64, with_prices: bool = False, **keywords: Any
    ) -> None:
        self.hidden, self.with_prices = hidden, with_prices
        super().__init__(*arguments, **keywords)

    def _build(self, lr_schedule: Any) -> None:
        self.scorer = CandidateScorer(self.hidden, self.with_prices)
        self.optimizer = torch.optim.Adam(
            self.scorer.parameters(), lr=lr_schedule(1), **self.optimizer_kwargs
        )

    def _get_constructor_parameters(self) -> dict[str, Any]:
        own = {"hidden": self.hidden, "with_prices": self.with_prices}
        return {**super()._get_constructor_parameters(), **own}

    def exported(self, meta: Mapping[str, Any]) -> Policy:
        """A copy of the weights for inference in NumPy."""
        state = self.scorer.state_dict()
        return Policy({name: value.numpy().copy() for name, value in state.items()}, meta)

    def imported(self, policy: Policy) -> None:
        """Takes over the weights of a policy of the same width."""
        self.scorer.load_state_dict(
            {name: torch.from_numpy(value) for name, value in policy.weights.items()}
        )

    def _masked(self, logits: Tensor, action_masks: NDArray[np.bool_] | Tensor | None) -> Tensor:
        if action_masks is None:
            return logits
        allowed = torch.as_tensor(action_masks, dtype=torch.bool).reshape(logits.shape)
        return torch.where(allowed, logits, torch.full_like(logits, FORBIDDEN_LOGIT))

    def forward(
        self, obs: Tensor, deterministic: bool = False, action_masks: Any = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Chooses actions: (B,) actions, (B, 1) values, (B,) log-probabilities."""
        logits, values = self.scorer(obs)
        log_probabilities = torch.log_softmax(self._masked(logits, action_masks), dim=1)
        noisy = log_probabilities
        if not deterministic:  # the largest of Gumbel-perturbed logits is a sample
            noisy = noisy - torch.log(-torch.log(torch.rand_like(noisy).clamp(1e-20, 1 - 1e-7)))
        actions = noisy.argmax(dim=1)
        chosen = log_probabilities.gather(1, actions[:, None]).squeeze(1)
        return actions, values[:, None], chosen

    def evaluate_actions(
        self, obs: Tensor, actions: Tensor, action_masks: Any = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(B, 1) values, (B,) log-probabilities of the actions, (B,) entropies."""
        logits, values = self.scorer(obs)
        log_probabilities = torch.log_softmax(self._masked(logits, action_masks), dim=1)
        chosen = log_probabilities.gather(1, actions.long().reshape(-1, 1)).squeeze(1)
        weighted = log_probabilities.exp() * log_probabilities.clamp(min=-50.0)
        return values[:, None], chosen, -weighted.sum(dim=1)

    def predict_values(self, obs: Any) -> Tensor:
        """(B, 1) values."""
        return self.scorer(obs)[1][:, None]  # type: ignore[no-any-return]

    def get_distribution(self, obs: Any, action_masks: Any = None) -> MaskableDistribution:
        """The distribution over actions."""
        logits = self._masked(self.scorer(obs)[0], action_masks)
        return self.action_dist.proba_distribution(action_logits=logits)


def maskable_ppo(policy: Policy, env: GymEnv, **arguments: Any) -> MaskablePPO:
    """A trained policy as a model of sb3-contrib: to evaluate, to save, or to go on with.

    Args:
        policy: Of chains; for prices the environment is `heterps/PricedStagePlacement-v0`.
        env: Any form of that environment, with room for any number of device classes.
        arguments: For `MaskablePPO`.
    """
    own = {"hidden": policy.hidden, "with_prices": policy.knows_prices}
    model = MaskablePPO(StagePolicy, env, policy_kwargs=own, device="cpu", **arguments)
    network_of(model).imported(policy)
    return model


def network_of(model: MaskablePPO) -> StagePolicy:
    """The policy of a model as what it is."""
    assert isinstance(model.policy, StagePolicy)
    return model.policy
