"""What each planner and system does, in one sentence."""

from __future__ import annotations

SENTENCES: dict[str, str] = {
    "auto": "The planner of choice: exact where that is quick, else policy and search; simulated.",
    "exact": "The optimum of the closed form with its proof, where that is affordable.",
    "ppo": "A trained policy places stage by stage; its beams are improved by small changes.",
    "unlearned-beam": "The beams of ppo with unlearned scores: what search alone is worth.",
    "annealing": "Small changes of the best simple placement, worse ones taken ever more rarely.",
    "genetic": "Crosses and mutates the stages of a population of placements.",
    "cross-entropy": "Draws cuts, classes and replicas by odds that the best draws shape.",
    "heterps-lstm": "Trains an LSTM by REINFORCE for every problem, as HeterPS does; needs torch.",
    "layer-ppo": "Trains plain PPO, layer by layer, for every problem; needs torch.",
    "greedy": "The stage that buys most for its price, next to next, under a target step time.",
    "random": "The best of random placements that keep to devices and memory.",
    "even": "One stage for every device, of equally many layers.",
    "memory-proportional": "One stage for every device, of layers in proportion to its memory.",
    "speed-proportional": "One stage for every device, of layers in proportion to its speed.",
    "uniform-3d": "The best of all even plans (dp, tp, pp, recompute): what one finds by hand.",
    "heterps-price": "The cheapest device classes and counts above a throughput floor.",
    "pipedream": "A model split over equal machines, level by level of their links.",
    "piper": "Stages, replicas and recomputation for equal devices, without tensor parallelism.",
    "pipeedge": "The chain with the least bottleneck over unlike devices.",
    "oobleck": "Pipelines of the best templates over equal devices, made to survive losses.",
    "malleus": "Pipelines that go round slow devices, which leave their groups, or stand by.",
    "sailor": "GPU types, layers and replicas under a cost of its own for types and regions.",
    "hap": "Slices of all layers, uneven by speed: one group, or replicas with uneven batches.",
    "whale": "The model on every device, with batches by speed and memory; else one pipeline.",
}
