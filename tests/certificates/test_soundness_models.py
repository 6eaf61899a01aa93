"""No pair of trajectories of layers, members and models does what their certificate says none does.

Steps are regular, or of any length.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from bounds.specimens import OPTIONS, extreme, sampled, trained
from bounds.step_search import Seen, violations
from certificates.trajectory_search import checked_module
from model_helpers import TRAINED, mark_fitted
from stablernn import Classifier, Forecaster, StableRNN
from stablernn.cells import cell_info
from stablernn.certificates.certificate import certify
from stablernn.errors import ConfigError
from stablernn.nn.ensemble import Ensemble
from stablernn.nn.models import SequenceModel

MODELS: dict[str, dict[str, Any]] = {
    "plain": {},
    "deep": {"num_layers": 2},
    "deep members": {"members": 2, "num_layers": 2},
    "patches": {"patch_size": 4, "patch_stride": 2, "patch_embedding": 5, "members": 2},
    "window": {"scaling": "window", "window": 8, "readout": "all"},
}
CONTRACTING = ("rnn", "indrnn", "nnrnn", "kru", "cfc", "cornn", "fastrnn", "incremental", "lru", "ren", "soft_orth")
"""Cells that contract where their weights are small, one of each way to prove it."""

TIMED = [key for key in TRAINED if cell_info(key).cell.takes_dt]
QUICK = ("rnn", "cornn", "lru", "gru", "lipschitz", "lem", "exprnn", "minlstm", "incremental")

trained_cell = pytest.mark.parametrize("key", TRAINED)


def layers(key: str, depth: int, *, share: float = 0.3, hidden: int = 5, **options: Any) -> StableRNN:
    """Layers as they start, all parameters times a share."""
    torch.manual_seed(depth)
    built = StableRNN(key, 2, hidden, num_layers=depth, **options)
    return shrunk(built, share)


def shrunk(module: Any, share: float) -> Any:
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(share)
        (module.rnn if isinstance(module, SequenceModel) else module).after_step(1, 100)
    return module.eval()


def check(module: Any, **search: int) -> dict[str, Seen]:
    """What was found of a module, by claim, none of which may be more than is proved."""
    seen = checked_module(module, None, **search)
    assert not violations(seen)
    return {one.claim: one for one in seen}


@pytest.mark.parametrize("key", sampled(TRAINED, *QUICK))
def test_of_layers(key: str) -> None:
    check(layers(key, 2))


@pytest.mark.parametrize(
    ("key", "options"),
    sampled(
        itertools.product(["rnn", "cornn", "lru", "eunn"], MODELS),
        ("rnn", "patches"), ("cornn", "deep members"), ("lru", "deep"), ("eunn", "window"),
    ),
)  # fmt: skip
def test_of_models(key: str, options: str) -> None:
    torch.manual_seed(0)
    check(shrunk(mark_fitted(Classifier(key, 1, 3, 4, **MODELS[options])), 0.4))


def test_of_a_forecaster_and_of_members_alone() -> None:
    torch.manual_seed(0)
    check(shrunk(mark_fitted(Forecaster("rnn", 1, 4, 6, num_layers=2)), 0.4))
    check(shrunk(Ensemble(2, "fastrnn", 2, 5, 2), 0.5))


@pytest.mark.parametrize("key", sampled(CONTRACTING, "nnrnn", "lru", "ren", "cfc"))
def test_these_contract_and_all_their_claims_are_looked_at(key: str) -> None:
    built = layers(key, 1, share=0.25)
    assert certify(built, stored=False).kind == "contracting"
    seen = check(built, steps=16)
    assert {"approach", "gain on all outputs", "gain over any time", "largest gain"} <= set(seen)
    assert seen["approach"].share > 0.5


@pytest.mark.parametrize("key", ["identity_rnn"])
def test_what_is_forgotten_is(key: str) -> None:
    built = layers(key, 1, share=0.3)
    assert (certify(built, stored=False).document()["forgetting"]["steps"] or 99) < 12
    seen = check(built, searches=10)
    assert seen["share remembered"].found > 0.3 * seen["share remembered"].certified


@pytest.mark.parametrize("key", sampled(TIMED, "lipschitz", "cfc", "lvf_mid"))
def test_of_irregular_time(key: str) -> None:
    check(layers(key, 1, max_dt=2.5))
    check(layers(key, 2, max_dt=2.5), pairs=4, searches=2)


def test_some_of_irregular_time_contract() -> None:
    damped = StableRNN("lipschitz", 2, 5, max_dt=2.0, linear_damping=1.0).eval()
    assert certify(damped, stored=False).kind == "contracting"
    seen = check(damped)
    assert seen["approach"].share > 0.3
    assert "largest gain" in seen


@pytest.mark.slow
class TestWidely:
    @pytest.mark.parametrize("max_dt", [1.0, 7.3])
    @pytest.mark.parametrize("depth", [1, 2, 3])
    @pytest.mark.parametrize("key", TIMED)
    def test_of_irregular_time(self, key: str, depth: int, max_dt: float) -> None:
        for share in (0.1, 0.5, 1.0):
            check(layers(key, depth, share=share, max_dt=max_dt), steps=30, searches=8)

    @pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
    @pytest.mark.parametrize("depth", [1, 2, 3])
    @trained_cell
    def test_of_layers(self, key: str, depth: int, share: float) -> None:
        check(layers(key, depth, share=share), steps=30, searches=8)

    @pytest.mark.parametrize("hidden", [33, 128])
    @trained_cell
    def test_of_large_layers(self, key: str, hidden: int) -> None:
        check(layers(key, 2, hidden=hidden), steps=12)

    @pytest.mark.parametrize("options", MODELS)
    @trained_cell
    def test_of_models(self, key: str, options: str) -> None:
        for share in (0.2, 1.0):
            torch.manual_seed(1)
            model = mark_fitted(Classifier(key, 2, 3, 5, **MODELS[options]))
            check(shrunk(model, share), pairs=4, searches=3)

    def test_of_options(self) -> None:
        for key, options in OPTIONS:
            try:
                built = layers(key, 2, share=0.5, hidden=4, **options)
            except ConfigError:
                # Ranks and heads of some options do not fit this size.
                continue
            check(built)

    @pytest.mark.parametrize("kind", ["zero", "orthogonal", "nilpotent", "repeated", "uneven"])
    @trained_cell
    def test_of_rare_matrices(self, key: str, kind: str) -> None:
        cell = extreme(key, 4, kind)
        with torch.no_grad():
            for parameter in cell.parameters():
                parameter.mul_(0.6)
            cell.after_step(1, 100)
        check(cell, steps=30, searches=8)

    @pytest.mark.parametrize("seed", range(100))
    def test_of_layers_drawn_at_random(self, seed: int) -> None:
        generator = np.random.default_rng(seed)
        key = TRAINED[int(generator.integers(len(TRAINED)))]
        torch.manual_seed(seed)
        built = StableRNN(key, 3, int(2 ** generator.uniform(0, 4)), num_layers=int(generator.integers(1, 4)))
        for parameter in built.parameters():
            torch.nn.init.normal_(parameter, std=float(10 ** generator.uniform(-2, 0)) * built.hidden_size**-0.5)
        built.after_step(1, 100)
        check(built.eval(), steps=30, searches=8)

    @pytest.mark.parametrize("key", ["rnn", "lipschitz", "lru", "noisy_rnn", "fastrnn"])
    def test_of_certified_layers_after_training(self, key: str) -> None:
        model = trained(key, 8, lr=0.1, certified=True, num_layers=2, members=2)
        assert certify(model, stored=False).kind == "contracting"
        check(model, steps=40, searches=12)
