"""Run settings: how a plan is run, beside what a user types for every run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from heterps_configs.documents.base import Document
from heterps_configs.documents.numbers import (
    Count,
    Factor,
    Number,
    PositiveCount,
    PositiveSeconds,
    Rate,
    Seconds,
    Seed,
    Threads,
    Weight,
    Whole,
)
from heterps_configs.errors import HeterpsError

# `torch`: the schedules of torch.distributed.pipelining, as the reference.
Engine = Literal["heterps", "torch"]
# `auto`: real GPUs of the cluster on CUDA where their host has it, all others on the CPU.
DeviceChoice = Literal["auto", "cpu", "cuda"]


class CheckpointSettings(Document):
    """Where and how often a run saves.

    Attributes:
        folder: All hosts of the run must see the same one; empty for none: nothing is saved.
        every: Steps between two checkpoints; 0 for only one, after the last step.
        keep: How many of the newest are kept, beside the one that the run started from.
        remote: URL (fsspec) of a folder that complete checkpoints are copied to; None for none.
    """

    folder: str = ""
    every: Count = 0
    keep: PositiveCount = 2
    remote: str | None = Field(default=None, min_length=1)

    def is_due(self, step: int, num_steps: int) -> bool:
        """Whether to save when `step` steps are done."""
        return step == num_steps or (self.every > 0 and step % self.every == 0)


class OnlineSettings(Document):
    """How a run adapts when devices drift (`--online`).

    Attributes:
        policy: Which policy searches and is fine-tuned: shipped name or file.
        fine_tune_s: Seconds of PPO in the corrected simulator for each drift; 0 for none.
        horizon_steps: A new plan must pay for its move within so many steps; None: within those
            that remain.
        drift_threshold: Share by which a device differs from what is believed of it before a search
            begins: below it, a new plan could not gain more than the noise of a measurement.
        sure_drift_threshold: The same where a monitor that has seen many steps is sure of a drift.
        effort: How hard the learned search tries.
        exact_cpu_s: Processor seconds of the exact solver for each drift.
        measure_every: Steps between two measurements for the controller.
    """

    policy: str = "generalist"
    fine_tune_s: Seconds = 15.0
    horizon_steps: PositiveCount | None = None
    drift_threshold: Factor = 0.10
    sure_drift_threshold: Factor = 0.05
    effort: Literal["fast", "normal", "high"] = "high"
    exact_cpu_s: PositiveSeconds = 10.0
    measure_every: PositiveCount = 5


class ElasticSettings(Document):
    """How a run goes on without lost devices, and when it takes one for lost (`--elastic`).

    Attributes:
        heartbeat_s: A process without a sign of life for so long is taken for lost; three of its
            heartbeats at least.
        stall_s: All are alive, but for so long none has done anything: the plan is begun anew. None
            for half a minute, or ten steps as predicted where that is longer.
        start_s: A process may import for so long before its first heartbeat.
        warm_up_s: So late may heartbeats be while a process builds its part of a model for the
            first time.
        standby_s: The same of a process that has recorded the model before, while others wait.
        first_read_s: `stall_s` while a model is read for the first time: it may be large, and its
            storage slow.
        tolerated_losses: Devices whose loss at one time has plans ready, beside whole nodes.
        losses_per_hour: By names of devices or of device types, where they are known; the likeliest
            losses have their plans first.
        planning_s: Seconds that planning anew may take while the devices wait.
        compress: Seconds of a spot trace (`--events FILE.csv`) that pass in one second.
    """

    heartbeat_s: Seconds = Field(default=1.5, ge=0.3)
    stall_s: PositiveSeconds | None = None
    start_s: PositiveSeconds = 300.0
    warm_up_s: PositiveSeconds = 120.0
    standby_s: PositiveSeconds = 20.0
    first_read_s: PositiveSeconds = 1200.0
    tolerated_losses: Count = 1
    losses_per_hour: Mapping[str, Weight] = {}
    planning_s: PositiveSeconds = 0.5
    compress: Factor = 1.0


class RunSettings(Document):
    """What `run_plan`, `run_elastic` and `heterps run` are told beside a problem and its plan.

    Attributes:
        description: One line for lists.
        steps: Optimizer steps, counted from the beginning of training.
        seed: Of the initial parameters, of the data, and of planners.
        learning_rate: None for the optimizer's usual one, or the checkpoint's.
        max_gradient_norm: Gradients are clipped to it, over the whole model; None for no limit.
        program: `FILE.py:function` or `package.module:function`, which returns the training program
            (model, loss, optimizer, data); runs once it is trusted. None: synthetic batches.
        weights: Folder of *.safetensors that the parameters are read from; None: drawn by the seed.
        verify: Train in one process as well, and compare the losses.
        engine: What carries out the steps; `torch` runs at the speed of the host and measures no
            actions.
        device: Where ranks compute; `cuda` refuses what `auto` would do on the CPU.
        num_threads: Threads of one rank's kernels.
        port: Where ranks meet; None for a free one.
        timeout_s: The run is ended after so many seconds; None for no limit.
        num_timelines: Of how many of the last steps the result has the actions.
        measures_links: Time the messages of every step; online runs always do.
        run_directory: Where specification, logs, measurements and results are left; None for a
            temporary one.
        resume: Go on from the newest checkpoint, whatever plan it was saved under.
        checkpoint: Where and how often to save.
        online: Of online runs.
        elastic: Of elastic runs.
    """

    description: str = ""
    steps: PositiveCount = 10
    seed: Seed = 0
    learning_rate: Rate | None = None
    max_gradient_norm: Number | None = Field(default=None, gt=0, le=1e9)
    program: str | None = Field(default=None, min_length=1)
    weights: str | None = Field(default=None, min_length=1)
    verify: bool = False
    engine: Engine = "heterps"
    device: DeviceChoice = "auto"
    num_threads: Threads = 1
    port: Whole | None = Field(default=None, ge=1, lt=2**16)
    timeout_s: PositiveSeconds | None = None
    num_timelines: PositiveCount = 1
    measures_links: bool = False
    run_directory: str | None = None
    resume: bool = False
    checkpoint: CheckpointSettings = CheckpointSettings()
    online: OnlineSettings = OnlineSettings()
    elastic: ElasticSettings = ElasticSettings()

    @property
    def saving(self) -> CheckpointSettings | None:
        """Where and how often to save; None for never.

        Raises:
            HeterpsError: It says how, or what to go on from, and not where.
        """
        if self.checkpoint.folder:
            return self.checkpoint
        needing = {
            "--resume": self.resume,
            f"checkpoint.every {self.checkpoint.every}": self.checkpoint.every,
            f"checkpoint.remote {self.checkpoint.remote}": self.checkpoint.remote,
        }
        for name, is_set in needing.items():
            if is_set:
                raise HeterpsError(f"{name}: needs --checkpoint FOLDER, or checkpoint.folder")
        return None
