"""Tables of the Jacobian spectra of trained models."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from stablernn.atomic_files import read_json, write_json
from stablernn.cells.lipschitz import SymmetricSkewCell
from stablernn.dynamics.report import MAX_JACOBIANS, MAX_STEPS, select_samples
from stablernn.dynamics.spectra import LayerDynamics, spectra
from stablernn.nn.models import SequenceModel
from stablernn.training import load_run
from stablernn.training.build import create_model
from stablernn.training.jobs import Job
from stablernn.training.loop.device import torch_settings
from stablernn_papers.folder import Run
from stablernn_papers.kinds.kind import Outcome, Request, RunResult
from stablernn_papers.kinds.trained import TrainedKind, score_figures
from stablernn_papers.plots import plot_spectra
from stablernn_papers.table import Table

_DRAWN_EIGENVALUES = 1024
"""Eigenvalues of a run that are kept for the picture: 25 KB of JSON."""


class SpectraKind(TrainedKind):
    """Eigenvalues of the Jacobians of the best weights, and those of the matrices before and after training."""

    views = ("best",)

    def work(self, request: Request) -> Outcome:
        runs = self.train(request)
        # A longer training may have another best epoch.
        files = {request.folder.measurement(run, _best_epoch(run)): run for run in runs}
        jobs = [
            Job(run.name, measure_spectra, (run.path, path), key=f"measured-{path.stem}", is_done=path.is_file)
            for path, run in files.items()
            if not path.is_file()
        ]
        request.run_remaining(jobs, "measured", len(runs))
        return Outcome([self._describe(request, run) for run in runs])

    def draw(self, path: Path, table: Table, results: Mapping[str, Any]) -> None:
        plot_spectra(path, results)

    def _describe(self, request: Request, run: Run) -> RunResult:
        best = _best_epoch(run)
        measurement: dict[str, Any] = read_json(request.folder.measurement(run, best))
        summary = run.summary
        assert summary is not None
        figures = {**score_figures(summary), **measurement["figures"]}
        certificate = (summary.get("certificate") or {}).get("kind")
        return {
            **self.describe_training(request, run),
            "spectrum": measurement["spectrum"],
            "eigenvalues": measurement["eigenvalues"],
            "views": {"best": best},
            "measured": [{"epoch": best, "kind": certificate, "figures": figures}],
        }


def measure_spectra(directory: Path, path: Path) -> None:
    """Measure the best weights of a run and write the measurement to a file."""
    with torch_settings(torch.device("cpu"), seed=0, threads=1):
        loaded = load_run(directory)
        data = loaded.load_data()
        samples = select_samples(data, "test", MAX_STEPS)
        layers = LayerDynamics(loaded.model, samples)
        size = len(layers.directions)
        # A decomposition takes cubic time, so that fewer Jacobians of long states are taken.
        count = max(16, min(MAX_JACOBIANS, int(MAX_JACOBIANS * (128 / size) ** 3)))
        measured = spectra(layers.jacobians(layers.trajectory(), count), layers.step_size)
        torch.manual_seed(loaded.config.training.seed)
        first, last = _real_parts(create_model(loaded.config, data)), _real_parts(loaded.model)
    spectrum = measured.document()
    figures = {
        "radius_max": spectrum["spectral_radius"]["most"],
        "mean_modulus": spectrum["mean_modulus"],
        "share_outside": spectrum["share_outside"],
        **{f"{name}_first": value for name, value in first.items()},
        **{f"{name}_last": value for name, value in last.items()},
    }
    write_json(path, {"figures": figures, "spectrum": spectrum, "eigenvalues": _drawn(measured.eigenvalues)})


def _drawn(eigenvalues: npt.NDArray[Any]) -> list[list[float]]:
    """Return real and imaginary parts of the eigenvalues of some Jacobians, ``(Jacobians, size)``, for the picture."""
    size = eigenvalues.shape[1]
    # Evenly over all Jacobians, as many as there is room for.
    count = max(1, min(len(eigenvalues), _DRAWN_EIGENVALUES // size))
    values = eigenvalues[np.linspace(0, len(eigenvalues) - 1, count).astype(int)].ravel()
    return [[round(float(value.real), 6), round(float(value.imag), 6)] for value in values]


def _real_parts(model: SequenceModel) -> dict[str, float | None]:
    """Return the largest real part of the eigenvalues of the matrices A and W; None for cells that have none."""
    cell = model.rnn.cells[0]
    if not isinstance(cell, SymmetricSkewCell):
        return {"linear": None, "recurrent": None}
    with torch.no_grad():
        matrices = {"linear": cell.linear_matrix(), "recurrent": cell.recurrent_matrix()}
        return {name: float(torch.linalg.eigvals(matrix.double()).real.max()) for name, matrix in matrices.items()}


def _best_epoch(run: Run) -> int:
    best: int = read_json(run.directory.summary)["best_epoch"]
    return best
