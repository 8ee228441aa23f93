"""How often HAP's best program changes its way between layers, and what that is worth.

    python benchmarks/planners/hap_programs.py
    python benchmarks/planners/hap_programs.py --quick --json hap_programs.json

Every shipped model but the largest, on the largest node of every shipped cluster, with one
micro-batch a step and with eight. Seconds are HAP's own cost, which counts neither memory nor the
optimizer. `uniform` is the best of all layers over one group, all by batch, and all on one device.
`group` may keep layers whole that a group could split, or split them by batch: a plan says such
programs, and they are priced as a run carries them out, where gradients of layers by batch are
summed for each micro-batch, by all-reduces. `any` may use all of HAP's collectives. Both are shown
over `uniform`, and `group` over all layers split, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.shared.common import Row, parse_options, report
from heterps_agents.systems.devices import nodes_of
from heterps_agents.systems.hap.alternation import with_best_shares
from heterps_agents.systems.hap.joint import best_choice
from heterps_agents.systems.hap.layers import group_chain, tensor_program, whole_chain
from heterps_agents.systems.hap.words import program_text
from heterps_configs.documents.job import Job
from heterps_configs.library import load_cluster, load_profile, shipped
from heterps_envs.problem import Problem

LEFT_OUT = ("llama-70b", "resnet-152")
MICRO_BATCH_SIZE, MICRO_BATCHES = 8, (1, 8)
MOST_DEVICES = 8
# A program that gains less is no gain.
GAIN = 0.01


def main() -> None:
    """Compares the programs, and prints those that gain."""
    options = parse_options(__doc__ or "")
    models = [name for name in shipped("models") if name not in LEFT_OUT]
    rows = list(_rows(models[:2] if options.quick else models))
    gains = [row for row in rows if min(row["any"], row["group"]) < 1 - GAIN]
    summary = {
        "problems": len(rows),
        "group_beats_uniform": sum(row["group"] < 1 - GAIN for row in rows),
        "group_beats_all_split": sum(row["group_over_split"] < 1 - GAIN for row in rows),
        "any_beats_uniform": sum(row["any"] < 1 - GAIN for row in rows),
        "least_group_over_uniform": min(row["group"] for row in rows),
        "least_any_over_uniform": min(row["any"] for row in rows),
    }
    report("Programs that change their way, over the best that does not", gains, summary, options)


def _rows(models: Sequence[str]) -> Iterator[Row]:
    for model in models:
        for cluster in shipped("clusters"):
            for count in MICRO_BATCHES:
                job = Job(
                    global_batch_size=count * MICRO_BATCH_SIZE,
                    micro_batch_size=MICRO_BATCH_SIZE,
                    dtype="float32",
                )
                problem = Problem(load_profile(model), load_cluster(cluster), job)
                names = max(nodes_of(problem), key=len)[:MOST_DEVICES]
                if len(names) > 1:
                    yield {
                        "model": model,
                        "cluster": cluster,
                        "devices": len(names),
                        "micro_batches": count,
                        **_compared(problem, names),
                    }


def _compared(problem: Problem, names: Sequence[str]) -> Row:
    chain = whole_chain(problem, names)
    split_s = with_best_shares(tensor_program(problem, names), chain).seconds
    batch_s = best_choice(chain.only(frozenset({"split batch"}))).seconds
    whole_s = problem.tables.forward_s + problem.tables.backward_s
    kinds = [problem.class_of[name] for name in names]
    alone_s = problem.job.num_micro_batches * float(whole_s.sum(axis=0)[kinds].min())
    uniform_s = min(split_s, batch_s, alone_s)
    on_group = best_choice(group_chain(problem, names)._replace(memory_bytes=()))
    best = best_choice(chain)
    return {
        "uniform_s": uniform_s,
        "group_over_split": on_group.seconds / split_s,
        "group": on_group.seconds / uniform_s,
        "any": best.seconds / uniform_s,
        "on_group": program_text(on_group.program),
        "program": program_text(best.program),
    }


if __name__ == "__main__":
    main()
