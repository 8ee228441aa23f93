"""The example that the help of each command ends with."""

from __future__ import annotations

_COMMANDS = {
    "place": "heterps place llama-7b -c a100-v100-t4 -o plan.yaml",
    "compare": "heterps compare resnet-152 -c a100-v100-t4 -p auto,greedy,sailor",
    "run": "heterps run plan.yaml --steps 20 --verify",
    "train": "heterps train --config quick --set seed=1 -o policy.npz",
    "profile": "heterps profile llama-tiny --device cpu -o profile.yaml",
    "discover": "heterps discover -o cluster.yaml",
    "doctor": "heterps doctor",
    "report": "heterps report plan.yaml -o report.html",
    "import": "heterps import arguments.txt llama-7b -c h100-pod --from megatron -o plan.yaml",
    "export": "heterps export plan.yaml out --to safetensors --checkpoint saved",
    "simulate": "heterps simulate plan.yaml --certify --figure timeline.png",
    "spot-trace": "heterps spot-trace spot-two-regions --hours 24 -o spot.csv",
    "demo": "heterps demo --run-directory runs/demo",
    "list": "heterps list planners",
    "copy": "heterps copy a100-v100 .",
    "compile": "heterps compile",
    "calibrate": "heterps calibrate --workloads workloads -o cards.yaml",
    "schema": "heterps schema schemas",
    "place-graph": "heterps place-graph ctr -c a100-v100 -o placement.json",
    "score": "heterps score generalist --set longer",
}
EXAMPLES = {name: f"Example: {line}" for name, line in _COMMANDS.items()}
