"""A plain PyTorch training loop for classification, the peer of ``stablernn train`` in ``benchmarks/end_to_end.py``.

    python benchmarks/plain_loop.py digits config.yaml

It is what one writes for a single problem: the antisymmetric cell as a loop over patches, AdamW, one-cycle learning
rates, clipped gradients, label smoothing and random changes of the sequences, the accuracy on the validation split
after each epoch, the best weights kept, their accuracy on the test split in the end. The sizes come from the
``config.yaml`` of a run; what a run does besides (certificates, calibration, figures, checkpoints from which it goes
on, further scores and baselines, irregular and missing data) is left out. Prints the test accuracy.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor, nn
from torch.nn import functional as F

from stablernn.data import ClassificationData, load_data

VALIDATION_BATCH = 256


class PlainClassifier(nn.Module):
    """Patches, an embedding, the antisymmetric cell, and a linear map of the last, mean and largest output."""

    def __init__(self, model: dict[str, Any], x: Tensor, classes: int) -> None:
        super().__init__()
        hidden, channels = model["hidden_size"], x.shape[2]
        self.size, self.stride = model["patch_size"], model["patch_stride"]
        self.step_size, self.damping = 0.3, 0.01
        self.register_buffer("mean", x.mean(dim=(0, 1)))
        self.register_buffer("scale", x.std(dim=(0, 1), correction=0))
        self.embedding = nn.Linear(self.size * channels, model["patch_embedding"])
        self.input = nn.Linear(model["patch_embedding"], hidden)
        self.weight_hh = nn.Parameter(torch.randn(hidden, hidden).triu(1) * hidden**-0.5)
        self.head = nn.Sequential(nn.Dropout(model["head_dropout"]), nn.Linear(3 * hidden, classes))

    def forward(self, x: Tensor) -> Tensor:
        x = (x - self.mean) / self.scale
        # Zeros before the first sample, the last sample again where the last patch is not full.
        x = F.pad(x.transpose(1, 2), (0, -x.shape[1] % self.stride), mode="replicate")
        patches = F.pad(x, (self.size - self.stride, 0)).unfold(2, self.size, self.stride)
        inputs = self.input(F.gelu(self.embedding(patches.transpose(1, 2).flatten(2))))
        upper = self.weight_hh.triu(1)
        matrix = upper - upper.T - self.damping * torch.eye(len(upper))
        h, states = x.new_zeros(len(x), len(matrix)), []
        for step in range(inputs.shape[1]):
            h = h + self.step_size * torch.tanh(h @ matrix.T + inputs[:, step])
            states.append(h)
        outputs = torch.stack(states, dim=1)
        return self.head(torch.cat([h, outputs.mean(dim=1), outputs.amax(dim=1)], dim=1))


def augment(x: Tensor, training: dict[str, Any], mean: Tensor, scale: Tensor) -> Tensor:
    """Return sequences that are read too early or too late, rescaled and noisy."""
    batch, time = x.shape[:2]
    steps = torch.arange(time)
    displacement = torch.zeros(batch, time)
    for wave in (1, 2, 3):
        displacement += torch.randn(batch, 1) / wave * torch.sin(wave * math.pi * steps / (time - 1))
    displacement *= torch.rand(batch, 1) < 0.5
    position = (steps + training["time_warp"] * time * displacement).clamp(0, time - 1)
    before = position.long()
    share = (position - before)[..., None]
    low, high = (index[..., None].expand_as(x) for index in (before, (before + 1).clamp(max=time - 1)))
    x = x.gather(1, low) * (1 - share) + x.gather(1, high) * share
    x = mean + (1 + training["rescale"] * torch.randn(batch, 1, x.shape[2])) * (x - mean)
    return x + training["jitter"] * scale * torch.randn_like(x)


@torch.no_grad()
def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """Return the share of sequences that a model classifies right."""
    model.eval()
    right = [
        (model(x[start : start + VALIDATION_BATCH]).argmax(dim=1) == y[start : start + VALIDATION_BATCH]).sum()
        for start in range(0, len(x), VALIDATION_BATCH)
    ]
    model.train()
    return float(sum(right)) / len(x)


def fit(config: dict[str, Any], splits: dict[str, tuple[Tensor, Tensor]], classes: int) -> PlainClassifier:
    """Train and return the model with the best validation accuracy."""
    training = config["training"]
    x, y = splits["train"]
    torch.manual_seed(training["seed"])
    model = PlainClassifier(config["model"], x, classes)
    groups = [
        {"params": [parameter for parameter in model.parameters() if parameter.dim() > 1]},
        {"params": [parameter for parameter in model.parameters() if parameter.dim() <= 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=training["lr"], weight_decay=training["weight_decay"])
    size, epochs = training["batch_size"], training["epochs"]
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, training["lr"], total_steps=epochs * -(-len(x) // size), cycle_momentum=False
    )
    best, weights = -1.0, model.state_dict()
    for epoch in range(epochs):
        total = 0.0
        for rows in torch.randperm(len(x)).split(size):
            optimizer.zero_grad()
            logits = model(augment(x[rows], training, model.mean, model.scale))
            loss = F.cross_entropy(logits, y[rows], label_smoothing=training["label_smoothing"])
            loss.backward()  # type: ignore[no-untyped-call]
            if training["clip_norm"]:
                nn.utils.clip_grad_norm_(model.parameters(), training["clip_norm"])
            optimizer.step()
            schedule.step()
            total += loss.item() * len(rows)
        score = accuracy(model, *splits["validation"])
        print(f"epoch {epoch + 1}  loss {total / len(x):.4g}  validation accuracy {score:.4g}", file=sys.stderr)
        if score >= best:
            best, weights = score, {name: value.clone() for name, value in model.state_dict().items()}
    model.load_state_dict(weights)
    return model


def main() -> None:
    source, path = sys.argv[1:]
    torch.set_num_threads(1)
    data = load_data(source)
    assert isinstance(data, ClassificationData)
    splits = {}
    for name, split in data.splits().items():
        samples = split.gather(range(len(split)))
        splits[name] = torch.from_numpy(samples.x), torch.from_numpy(samples.y)
    model = fit(yaml.safe_load(Path(path).read_text()), splits, len(data.labels))
    print(accuracy(model, *splits["test"]))


if __name__ == "__main__":
    main()
