"""What runs tell of layer times: a Gaussian belief about the logarithms of factors.

All devices of one type share a `TypeBelief`. The seconds of layer l on device d are believed to be

    forward_s[l, d]  = base forward_s[l]  * exp(type + device[d] + layer[l])
    backward_s[l, d] = base backward_s[l] * exp(the same + type backward + device[d] backward)

A run measures sums over the layers of a stage. The belief is the Gaussian around the most likely
factors (Laplace's approximation), found by Gauss-Newton steps over all that was measured, so that
repeated measurements of overlapping stages tell layers apart. Layers that nobody measured take what
the type and the device are believed to be, and keep the spread of a layer.

A device by itself mostly is as its type is, and sometimes far from it (a straggler), so its own
factor has a prior with heavy tails: Student's t as a Gaussian whose width follows the factor
(Lange, Little and Taylor, Robust statistical modeling using the t distribution, 1989). One slow
device then does not make its whole type slow where another device of it is as predicted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from heterps_envs.arrays import Floats

Direction = Literal["forward", "backward"]

# A measurement so far from what was expected, in standard deviations and as a logarithm, is of a
# device that has changed: what it took before says nothing of what it takes now.
SURPRISE, LEAST_SURPRISE = 4.0, 0.08
MAX_ITERATIONS, ENOUGH = 60, 1e-7


class Spreads(NamedTuple):
    """Standard deviations of logarithms, before anything is measured.

    Attributes:
        kind: Of the factor of a device type.
        layer: Of the factor of each layer on a type.
        device: Usual difference between devices of a type; a straggler may be far beyond.
        device_freedom: Degrees of freedom of its t distribution.
        backward: Between the factors of forward and backward passes.
        noise: Of one measured stage.
    """

    kind: float = 0.35
    layer: float = 0.15
    device: float = 0.05
    device_freedom: float = 1.0
    backward: float = 0.05
    noise: float = 0.02


DEFAULT_SPREADS = Spreads()


class StageTime(NamedTuple):
    """Seconds of one pass of one full micro-batch over a stage of one device.

    Attributes:
        device: Index among the devices of the type.
        first_layer, last_layer: The stage's layers (inclusive).
        offset_s: What the stage takes beside its layers, as believed before anything was measured.
    """

    device: int
    direction: Direction
    first_layer: int
    last_layer: int
    seconds: float
    offset_s: float = 0.0


class Factors(NamedTuple):
    """What a device's seconds are multiplied by.

    Attributes:
        forward: (L,) of its layers' forward passes.
        backward: (L,) of its layers' backward passes.
        stage_forward: Of what its stages take beside their layers, forward.
        stage_backward: The same, backward.
    """

    forward: Floats
    backward: Floats
    stage_forward: float
    stage_backward: float


@dataclass
class _Entry:
    """All measurements of one stage, one direction and one device as it was for a time."""

    time: StageTime
    epoch: int
    log_sum: float = 0.0
    count: int = 0


@dataclass(frozen=True)
class _Posterior:
    mean: Floats  # (m,)
    precision: Floats  # (m, m)


@dataclass
class TypeBelief:
    """The devices of one type.

    Attributes:
        forward_s: (L,) base seconds.
        backward_s: (L,) base seconds.
        num_devices: N.
        spreads: Before anything is measured.
    """

    forward_s: Floats
    backward_s: Floats
    num_devices: int
    spreads: Spreads = DEFAULT_SPREADS
    _entries: dict[tuple[int, Direction, int, int], _Entry] = field(default_factory=dict)
    _epochs: list[int] = field(default_factory=list)
    _newest: _Posterior | None = None

    def __post_init__(self) -> None:
        # One column of the latent vector for each device; a device that changed gets a new one.
        self._epochs = list(range(self.num_devices))
        self._num_epochs = self.num_devices

    @property
    def num_layers(self) -> int:
        """Number of layers, L."""
        return len(self.forward_s)

    @property
    def is_measured(self) -> bool:
        """Whether there was any measurement."""
        return bool(self._entries)

    def has_measured(self, device: int) -> bool:
        """Whether there was any measurement of a device as it is now."""
        return any(entry.epoch == self._epochs[device] for entry in self._entries.values())

    def observe(self, times: Sequence[StageTime]) -> None:
        """Takes measurements of one window of a run."""
        usable = [time for time in times if time.seconds > 0 and self._base_s(time) > 0]
        for device in {time.device for time in usable if self._is_surprise(time)}:
            self._epochs[device] = self._num_epochs
            self._num_epochs += 1
        for time in usable:
            epoch = self._epochs[time.device]
            key = (epoch, time.direction, time.first_layer, time.last_layer)
            entry = self._entries.setdefault(key, _Entry(time, epoch))
            entry.log_sum += math.log(time.seconds)
            entry.count += 1
        self._newest = None

    def factors(self, device: int) -> Factors:
        """The most likely factors."""
        return self._factors(self._posterior().mean, device)

    def log_device(self, device: int) -> float:
        """Logarithm of how much slower a device is than its type, the slower direction's."""
        mean, epoch = self._posterior().mean, self._epochs[device]
        own, backward = mean[self._own(epoch)], mean[self._own_backward(epoch)]
        return float(max(own, own + backward, key=abs))

    def type_factors(self) -> Factors:
        """The most likely ones of a device that is as its type is."""
        return self._type_factors(self._posterior().mean)

    def optimistic_type_factors(self, deviations: float) -> Factors:
        """So many standard deviations below the most likely ones, layer by layer."""
        likely, layers = self.type_factors(), slice(2, 2 + self.num_layers)
        covariance = np.linalg.inv(self._posterior().precision)
        variance = covariance[0, 0] + np.diag(covariance)[layers] + 2 * covariance[0, layers]
        shares = np.exp(-deviations * np.sqrt(np.maximum(variance, 0.0)))
        return likely._replace(forward=likely.forward * shares, backward=likely.backward * shares)

    def draw_type_factors(self, rng: np.random.Generator) -> Factors:
        """Drawn from the belief, of a device that is as its type is."""
        return self._type_factors(self._draw(rng))

    def spread(self, time: StageTime) -> float:
        """Standard deviation of the logarithm of what a stage would take, without noise."""
        _, jacobian = self._expected(self._posterior().mean, time, self._epochs[time.device])
        covariant = np.linalg.solve(self._posterior().precision, jacobian)
        return math.sqrt(max(float(jacobian @ covariant), 0.0))

    def draw(self, rng: np.random.Generator) -> list[Factors]:
        """Factors of every device, drawn together from the belief."""
        sample = self._draw(rng)
        return [self._factors(sample, device) for device in range(self.num_devices)]

    # -- the latent vector: type, type backward, (L,) layers, (E,) devices, (E,) devices backward

    @property
    def _size(self) -> int:
        return 2 + self.num_layers + 2 * self._num_epochs

    def _own(self, epoch: int) -> int:
        return 2 + self.num_layers + epoch

    def _own_backward(self, epoch: int) -> int:
        return 2 + self.num_layers + self._num_epochs + epoch

    def _base_s(self, time: StageTime) -> float:
        seconds = self.forward_s if time.direction == "forward" else self.backward_s
        part = slice(time.first_layer, time.last_layer + 1)
        return float(seconds[part].sum() + time.offset_s)

    def _draw(self, rng: np.random.Generator) -> Floats:
        posterior = self._posterior()
        root = np.linalg.cholesky(posterior.precision)
        return np.asarray(posterior.mean + np.linalg.solve(root.T, rng.standard_normal(len(root))))

    def _type_factors(self, latent: Floats) -> Factors:
        alone = latent.copy()
        alone[2 + self.num_layers :] = 0.0
        return self._factors(alone, 0)

    def _factors(self, latent: Floats, device: int) -> Factors:
        epoch = self._epochs[device]
        forward = float(latent[0] + latent[self._own(epoch)])
        backward = forward + float(latent[1] + latent[self._own_backward(epoch)])
        layers = latent[2 : 2 + self.num_layers]
        return Factors(
            np.exp(forward + layers), np.exp(backward + layers),
            math.exp(forward), math.exp(backward),
        )  # fmt: skip

    def _expected(self, latent: Floats, time: StageTime, epoch: int) -> tuple[float, Floats]:
        """Logarithm of a stage's seconds, and its (m,) derivative."""
        is_forward = time.direction == "forward"
        part = slice(time.first_layer, time.last_layer + 1)
        seconds = (self.forward_s if is_forward else self.backward_s)[part]
        layers = slice(2 + time.first_layer, 3 + time.last_layer)
        parts = seconds * np.exp(latent[layers])
        # An offset may be below 0; it never leaves less than a thousandth of the layers' seconds.
        total = max(float(parts.sum() + time.offset_s), 1e-3 * float(parts.sum()))
        shared = [0, self._own(epoch)]
        if not is_forward:
            shared += [1, self._own_backward(epoch)]
        jacobian = np.zeros(self._size)
        jacobian[shared] = 1.0
        jacobian[layers] = parts / total
        return math.log(total) + float(latent[shared].sum()), jacobian

    def _is_surprise(self, time: StageTime) -> bool:
        """Whether a device that was measured before cannot be what it was."""
        if not self.has_measured(time.device):
            return False
        mean = self._posterior().mean
        expected, _ = self._expected(mean, time, self._epochs[time.device])
        spread = math.hypot(self.spread(time), self.spreads.noise)
        difference = abs(math.log(time.seconds) - expected)
        return difference > max(SURPRISE * spread, LEAST_SURPRISE)

    def _posterior(self) -> _Posterior:
        if self._newest is None:
            self._newest = self._most_likely()
        return self._newest

    def _most_likely(self) -> _Posterior:
        """Gauss-Newton on the logarithm of the posterior, reweighted for the devices' t priors."""
        latent: Floats = np.zeros(self._size)
        precision = np.diag(self._prior_precision(latent))
        for _ in range(MAX_ITERATIONS if self._entries else 0):
            prior = self._prior_precision(latent)
            precision, pull = np.diag(prior), np.zeros(self._size)
            for entry in self._entries.values():
                expected, jacobian = self._expected(latent, entry.time, entry.epoch)
                weight = entry.count / self.spreads.noise**2
                residual = entry.log_sum / entry.count - expected + float(jacobian @ latent)
                precision += weight * np.outer(jacobian, jacobian)
                pull += weight * residual * jacobian
            found = np.asarray(np.linalg.solve(precision, pull), np.float64)
            change, latent = float(np.abs(found - latent).max()), found
            if change < ENOUGH:
                break
        return _Posterior(latent, precision)

    def _prior_precision(self, latent: Floats) -> Floats:
        """(m,); the devices' depend on where they are."""
        spreads, freedom = self.spreads, self.spreads.device_freedom
        own = latent[2 + self.num_layers : 2 + self.num_layers + self._num_epochs]
        devices = (freedom + 1) / (freedom * spreads.device**2 + own**2)
        return np.concatenate(
            [
                [spreads.kind**-2, spreads.backward**-2],
                np.full(self.num_layers, spreads.layer**-2),
                devices,
                np.full(self._num_epochs, spreads.backward**-2),
            ]
        )
