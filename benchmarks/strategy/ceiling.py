"""What a perfect plan could reach: a bound over all strategies, beside plans with and without.

    python benchmarks/strategy/ceiling.py --model llama-7b --cluster a100-v100-t4

One row for each size of micro-batches: no plan of any tensor-parallel degree, with or without
recompute and sharded state, takes less than the bound (`heterps_envs.options.bounding_tables`).
"""

from __future__ import annotations

import math
from dataclasses import replace

from benchmarks.shared.common import parse_options, report
from heterps.planning.place import place
from heterps.planning.problems import load_problem
from heterps_agents.search.uniform import micro_batch_candidates
from heterps_configs.documents.job import Strategy
from heterps_envs.closed_form.bounds import least_cost


def main() -> None:
    """Prints the table."""
    options = parse_options(
        __doc__ or "",
        model="by default llama-7b",
        cluster="by default a100-v100-t4",
    )
    model, cluster = options.model or "llama-7b", options.cluster or "a100-v100-t4"
    problem = load_problem(model, cluster)
    batch = problem.job.global_batch_size
    rows = []
    for size in micro_batch_candidates(problem):
        job = problem.job.changed(micro_batch_size=size, unequal_micro_batch_sizes=None)
        bound_s = least_cost(replace(problem, job=job))
        rows.append({"micro_batch": size, "bound_s": bound_s, "samples_per_s": batch / bound_s})
    least_s = min((row["bound_s"] for row in rows), default=math.inf)
    plain = replace(problem, strategy=Strategy())
    plain_s = place(plain, seed=options.seed).estimate.step_time_s
    best_s = place(problem, seed=options.seed).estimate.step_time_s
    summary = {
        "without strategies, samples/s": batch / plain_s,
        "with strategies, samples/s": batch / best_s,
        "times faster": plain_s / best_s,
        "times faster at most": plain_s / least_s,
    }
    report(f"{model} on {cluster}", rows, summary, options)


if __name__ == "__main__":
    main()
