"""Shapes in pictures: a training program for a small vision transformer.

    python -m heterps_runtime.examples.image_folder pictures
    heterps place pictures/config.json -c local-emulated --global-batch 32 --micro-batch 8 \
        --dtype float32 -o plan.yaml
    heterps run plan.yaml --steps 300 --program heterps_runtime.examples.image_folder:make

The variable `PICTURES` names another folder: one folder for each class, with PNG files in it, and
the transformer's `config.json`. The pictures are generated: a disc, a square, a cross or a frame,
of any colour, anywhere, on a noisy ground.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heterps_configs.errors import HeterpsError
from heterps_runtime.examples.command_line import ExampleParser, errors_in_one_line
from heterps_runtime.training.program import TrainingProgram

CLASSES = ("cross", "disc", "frame", "square")
SIZE, PICTURES_OF_A_CLASS = 32, 250
# Of each class the last ones are for evaluation.
HELD_OUT = 25
CONFIG = {
    "model_type": "vit",
    "architectures": ["ViTForImageClassification"],
    "image_size": SIZE,
    "patch_size": 4,
    "num_channels": 3,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "id2label": {str(number): name for number, name in enumerate(CLASSES)},
    "label2id": {name: number for number, name in enumerate(CLASSES)},
}


class Pictures:
    """Files of pictures with their classes; each is read when it is asked for."""

    def __init__(self, files: list[tuple[Path, int]]) -> None:
        self._files = files

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        from matplotlib.image import imread

        path, number = self._files[index]
        picture = torch.from_numpy(np.asarray(imread(path), dtype=np.float32)[..., :3])
        return picture.permute(2, 0, 1) * 2 - 1, torch.tensor(number)


def generate(folder: str) -> None:
    """Writes pictures and the config of a model for them."""
    from matplotlib.image import imsave

    draw = np.random.default_rng(0)
    for name in CLASSES:
        (Path(folder) / name).mkdir(parents=True, exist_ok=True)
        for number in range(PICTURES_OF_A_CLASS):
            imsave(Path(folder) / name / f"{number:03}.png", _picture(name, draw))
    (Path(folder) / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")


def _picture(name: str, draw: np.random.Generator) -> NDArray[np.float64]:
    """(SIZE, SIZE, 3) between 0 and 1."""
    radius = draw.integers(5, 9)
    x, y = draw.integers(radius, SIZE - radius, 2)
    across, down = np.meshgrid(np.arange(SIZE) - x, np.arange(SIZE) - y)
    far = np.maximum(abs(across), abs(down))
    inside = {
        "disc": across**2 + down**2 <= radius**2,
        "square": far <= radius - 1,
        "frame": (far <= radius) & (far > radius - 2),
        "cross": (np.minimum(abs(across), abs(down)) <= 1) & (far <= radius),
    }[name]
    ground = 0.3 * draw.random((SIZE, SIZE, 3))
    return np.where(inside[..., None], 0.4 + 0.6 * draw.random(3), ground)


def accuracy(output: Tensor, target: Tensor) -> Tensor:
    """Share of pictures whose class is found."""
    return (output.argmax(-1) == target).float().mean()


def make() -> TrainingProgram:
    """The loss is the model's own; some pictures of each class are for evaluation."""
    folder = Path(os.environ.get("PICTURES", "pictures"))
    files = {name: sorted((folder / name).glob("*.png")) for name in CLASSES}
    missing = [name for name, found in files.items() if len(found) <= HELD_OUT]
    if missing:
        raise HeterpsError(
            f"PICTURES: {folder / missing[0]} has too few PNG files; "
            f"python -m heterps_runtime.examples.image_folder {folder} generates them"
        )
    numbered = [(files[name], number) for number, name in enumerate(CLASSES)]
    return TrainingProgram(
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
        data=Pictures([(p, number) for found, number in numbered for p in found[:-HELD_OUT]]),
        evaluation_data=Pictures(
            [(p, number) for found, number in numbered for p in found[-HELD_OUT:]]
        ),
        evaluate_every=50,
        metrics={"accuracy": accuracy},
    )


if __name__ == "__main__":
    parser = ExampleParser(__doc__)
    parser.add_argument("folder", metavar="FOLDER", help="where to write the pictures")
    with errors_in_one_line():
        generate(parser.parse_args().folder)
