"""Options of `heterps run` that live in files now: old spellings say where they went."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand

from heterps_configs.errors import HeterpsError

_SETTINGS = {
    "--checkpoint-every": "checkpoint.every",
    "--compress": "elastic.compress",
    "--engine": "engine",
    "--fine-tune-seconds": "online.fine_tune_s",
    "--heartbeat": "elastic.heartbeat_s",
    "--horizon": "online.horizon_steps",
    "--keep": "checkpoint.keep",
    "--learning-rate": "learning_rate",
    "--max-gradient-norm": "max_gradient_norm",
    "--policy": "online.policy",
    "--port": "port",
    "--remote": "checkpoint.remote",
    "--tolerate": "elastic.tolerated_losses",
    "--weights": "weights",
}
_EVENTS = {
    "--join": "{step: 20, join: fast}",
    "--lose": "{step: 10, lose: fast}",
    "--slow": "{step: 10, slow: fast, factor: 3}",
    "--stop": "{step: 10, stop: fast}",
}
# Of each option, the one line that it is answered with.
MOVED = {
    **{
        name: f"{name} moved: set {field} in a settings file (--settings FILE; `heterps copy "
        "run-settings` writes one)"
        for name, field in _SETTINGS.items()
    },
    **{
        name: f"{name} moved: write {event} in an events file (--events FILE; `heterps copy "
        "run-events` writes one)"
        for name, event in _EVENTS.items()
    },
}


class RunCommand(TyperCommand):
    """`heterps run`, which knows its old options."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parses a command line.

        Raises:
            HeterpsError: It has an option that has moved.
        """
        for word in args:
            name = word.partition("=")[0]
            if name in MOVED:
                raise HeterpsError(MOVED[name])
        return super().parse_args(ctx, args)
