"""The agent: how far each method is from the best, training, and the speed of the environments.

    python benchmarks/agent/agent.py --quick
    python benchmarks/agent/agent.py --workloads FOLDER --json out.json --tensorboard tb
    python benchmarks/agent/agent.py --workloads FOLDER --markdown docs/results/agent.md

Sections: `chains` and `graphs` compare every method on every test set under equal budgets, in
evaluations and in CPU seconds; `prices` does so for the cheapest plans; `training` measures how
fast policies learn, over three seeds; `environments` measures steps per second. Those in the folder
`worth`: `learning` puts other weights into the very same search, `scale` has hundreds of devices,
`simulated` is `auto` beside the best plan that any planner finds. FOLDER holds published files
(default: `$HETERPS_WORKLOADS`); without it their sets are left out. With --json, finished rows are
kept beside that file, and an interrupted run goes on after them.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from importlib import import_module
from pathlib import Path

from benchmarks.agent.section import SectionResult, Settings
from benchmarks.shared.common import machine, parse_options
from heterps_configs.documents.yaml_files import write_text
from heterps_configs.errors import HeterpsError, UnknownNameError

# NumPy's libraries read these when they are loaded, which is when a section is.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
SETS = ("frozen", "development")
# In the order in which they are shown. Each is a module of this folder or of `worth`.
SECTIONS = (
    "chains",
    "learning",
    "scale",
    "simulated",
    "prices",
    "graphs",
    "training",
    "environments",
)
ABOUT_WORTH = ("learning", "scale", "simulated")


def main() -> None:
    """Runs the sections and writes what was asked for."""
    options = parse_options(
        __doc__ or "",
        only=f"one section, or several with commas between: {', '.join(SECTIONS)}",
        workloads="folder of the published files (default: $HETERPS_WORKLOADS)",
        policy="chain policy: a path or a shipped name (default: generalist)",
        price_policy="chain policy for prices: the same (default: price-generalist)",
        graph_policy="graph policy: the same (default: graph-generalist)",
        policies="chain policies of several seeds, with commas between (default: trained here)",
        imitation="chain policy that imitation alone made, for the section learning",
        sets="frozen (default) or development: which sets learning and scale look at",
        markdown="write the tables to this file",
        tensorboard="write TensorBoard events to this folder",
    )
    # One thread, so that CPU seconds of methods can be compared.
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, "1"))
    try:
        run(options)
    except HeterpsError as error:
        sys.exit(f"error: {error}")


def run(options: argparse.Namespace) -> dict[str, SectionResult]:
    """The results of every wanted section, by name; each is shown and written when it is done.

    Raises:
        UnknownNameError: There is no section of a wanted name.
        HeterpsError: The folder of published files does not exist, or a policy.
    """
    from benchmarks.agent.outputs import show
    from benchmarks.agent.targets import targets_table

    wanted = options.only.split(",") if options.only else list(SECTIONS)
    for name in wanted:
        if name not in SECTIONS:
            raise UnknownNameError("section", name, SECTIONS)
    settings = settings_of(options)
    results: dict[str, SectionResult] = {}
    failures: list[str] = []
    for name in wanted:
        section = import_module(module_of(name))
        try:
            results[name] = section.run(settings)
        except HeterpsError as error:  # the other sections may work nevertheless
            failures.append(f"{name}: {error}")
            continue
        show(results[name].tables)
        write(results, options)
    targets = targets_table(results)
    if targets is not None:
        show([targets])
    if failures:
        raise HeterpsError("\n".join(failures))
    for result in results.values():
        if options.json and result.store is not None:
            result.store.remove()
    return results


def module_of(section: str) -> str:
    """Where the function `run` of a section is."""
    room = "benchmarks.agent.worth" if section in ABOUT_WORTH else "benchmarks.agent"
    return f"{room}.{section}"


def settings_of(options: argparse.Namespace) -> Settings:
    """The options as sections take them."""
    workloads = options.workloads or os.environ.get("HETERPS_WORKLOADS")
    if not workloads:
        print("published sets are left out: they need --workloads FOLDER", file=sys.stderr)
    elif not Path(workloads).is_dir():
        raise HeterpsError(f"--workloads: {workloads} is no folder")
    if options.sets not in (None, *SETS):
        raise UnknownNameError("kind of sets", options.sets, SETS)
    return Settings(
        quick=options.quick,
        seed=options.seed,
        workloads=Path(workloads) if workloads else None,
        policy=options.policy or Settings.policy,
        price_policy=options.price_policy or Settings.price_policy,
        graph_policy=options.graph_policy or Settings.graph_policy,
        policies=tuple(options.policies.split(",")) if options.policies else (),
        imitation=options.imitation or "",
        is_development=options.sets == "development",
        partial_file=options.json.with_suffix(".partial.jsonl") if options.json else None,
    )


def write(results: dict[str, SectionResult], options: argparse.Namespace) -> None:
    """Writes the files that were asked for; so far finished sections are in them."""
    if options.markdown:
        from benchmarks.agent.outputs import markdown
        from benchmarks.agent.targets import targets_table

        write_text(Path(options.markdown), markdown(results, targets_table(results)))
    if options.json:
        content = {name: result.plain() for name, result in results.items()}
        write_text(options.json, json.dumps({**content, "machine": machine()}, indent=1) + "\n")
    if options.tensorboard:
        from benchmarks.agent.tensorboard_files import write_tensorboard

        name = list(results)[-1]
        write_tensorboard(Path(options.tensorboard), name, results[name])


if __name__ == "__main__":
    main()
