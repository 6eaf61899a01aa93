"""Fixed kernels: several groups and channels against the formula, the bits of the fast path, and thresholds."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from reference.mapping import reference_states
from stablernn import StableRNN
from stablernn.cells.rocket import GRID, LARGEST_SAMPLE, MOST_STEPS, RocketCell


def layer(channels: int, features: int, memory: int, *, engine: str = "pooled") -> StableRNN:
    torch.manual_seed(features)
    return StableRNN("rocket", channels, features, memory=memory, engine=engine).eval()


def only_cell(rnn: StableRNN) -> RocketCell:
    (cell,) = rnn.cells
    assert isinstance(cell, RocketCell)
    return cell


# Of the last one, every sum is as large as it can be: nine channels at the limit.
@pytest.mark.parametrize(
    ("channels", "features", "memory", "scale"), [(1, 200, 41, 1.0), (4, 300, 30, 1.0), (9, 170, 17, 1e4)]
)
def test_every_bit_in_float32_is_that_of_the_formula_in_float64(
    channels: int, features: int, memory: int, scale: float
) -> None:
    rnn = layer(channels, features, memory)
    cell = only_cell(rnn)
    if scale > 1:
        cell.channels.fill_(1)
        with torch.no_grad():
            # Next to the sums that occur, the largest of which is 12 * 64 * 9.
            cell.threshold.copy_(torch.randint(-108, 109, (features,)) * LARGEST_SAMPLE)
    x = scale * torch.randn(3, 30, channels)
    with torch.no_grad():
        _, state = rnn.run(x, rnn.initial_state(3), every_output=False)
    expected = reference_states(cell.double(), x.double(), tuple(torch.zeros_like(part).double() for part in state))
    for part, truth in zip(state, expected, strict=True):
        assert torch.equal(part, truth[:, -1].float())
    assert 0.1 < float(state[0].mean()) < 0.9


@pytest.mark.parametrize(("channels", "features", "memory", "time"), [(1, 270, 60, 70), (3, 100, 9, 25), (2, 5, 12, 1)])
def test_the_fast_path_has_the_bits_of_the_steps(
    channels: int, features: int, memory: int, time: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Tiles end within sequences, between them and between steps of the longest one.
    monkeypatch.setattr("stablernn.engines.pooled.TILE_STEPS", 32)
    fast, stepped = layer(channels, features, memory), layer(channels, features, memory, engine="loop")
    x, lengths = torch.randn(6, time, channels), torch.tensor([time, 1, time // 2, 0, time - 1, time])
    with torch.no_grad():
        state = fast.initial_state(6)
        for counted in (None, lengths, lengths):
            _, found = fast.run(x, state, counted, every_output=False)
            _, expected = stepped.run(x, state, counted, every_output=False)
            for part, truth in zip(found, expected, strict=True):
                assert torch.equal(part, truth)
            # The next ones go on from there.
            state = found


def test_hits_come_back_from_shares_up_to_the_limit_at_which_the_count_is_halved() -> None:
    random = np.random.default_rng(0)
    steps = np.concatenate([random.integers(1, MOST_STEPS, 200_000), np.full(200_000, MOST_STEPS)])
    hits = (random.random(len(steps)) * steps).astype(np.int64)
    share = torch.from_numpy(hits).float() / torch.from_numpy(steps).float()
    assert torch.equal(torch.round(share * torch.from_numpy(steps).float()).long(), torch.from_numpy(hits))
    rnn = layer(1, 84, 9)
    state = torch.full((1, 84), 0.25), torch.full((1, 1), MOST_STEPS - 2.0), torch.zeros(1, 8)
    with torch.no_grad():
        outputs, (_, count, _) = rnn.run(torch.randn(1, 9, 1), state)
    assert float(count) == MOST_STEPS / 2 + 7
    assert outputs is not None
    # A step moves a share by its weight; rounding at the limit by half as much, once.
    moves = (outputs[0, 1:] - outputs[0, :-1]).abs() * MOST_STEPS
    assert float(moves.max()) < 2.6


def exceeding(cell: RocketCell, sequences: list[Tensor]) -> Tensor:
    """The share of all steps of sequences at which each feature exceeds its threshold."""
    rnn = StableRNN("rocket", cell.input_size, cell.hidden_size, memory=cell.memory)
    rnn.layers[0] = cell
    with torch.no_grad():
        hits = [rnn(sequence[None])[1][0][0, 0] * len(sequence) for sequence in sequences]
    return torch.stack(hits).sum(dim=0) / sum(map(len, sequences))


def test_thresholds_are_quantiles_of_the_training_steps_and_ignore_padding() -> None:
    cell = only_cell(layer(2, 400, 33))
    lengths = [100, 5, 60, 90]
    sequences = [torch.randn(length, 2).cumsum(dim=0) / 5 for length in lengths]
    fitted = []
    for filler in (0.0, 50.0):
        padded = [torch.nn.functional.pad(each, (0, 0, 0, 100 - len(each)), value=filler) for each in sequences]
        torch.manual_seed(1)
        cell.fit_inputs(torch.stack(padded), torch.tensor(lengths))
        fitted.append(cell.materialize().threshold.clone())
    assert torch.equal(*fitted)
    assert torch.equal((fitted[0] * GRID).frac().abs(), torch.full((400,), 0.5))
    levels = torch.frac(torch.arange(1, 401, dtype=torch.float64) * (math.sqrt(5) - 1) / 2)
    # Of 1,024 draws a share is off by .016; ties, such as at the start of a sequence, add to it.
    difference = exceeding(cell, sequences) - (1 - levels)
    assert float(difference.abs().max()) < 0.08
    assert abs(float(difference.mean())) < 0.01
