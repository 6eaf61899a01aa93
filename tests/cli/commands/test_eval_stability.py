"""`eval --stability`: what is proved beside what is observed, of runs and of versions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cli_helpers import Workplace, copied
from stablernn_registry import Registry


def stability(workplace: Workplace, target: str, *more: object) -> dict[str, Any]:
    document: dict[str, Any] = workplace.ok(f"-q eval {target} --stability", *more, "--json").json
    return document


@dataclass(frozen=True)
class Measured:
    """A workplace, and by target what `eval --stability` said there."""

    workplace: Workplace
    documents: dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def measured(trained: Workplace, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Measured]:
    """Both runs and both versions, once each; not to be changed."""
    with copied(trained, tmp_path_factory.mktemp("measured") / "copy") as copy:
        yield Measured(copy, {t: stability(copy, t) for t in ("digits-run", "digits:1")})


def test_a_version_shows_what_its_run_does(measured: Measured) -> None:
    run, version = "digits-run", "digits:1"
    workplace, left, right = measured.workplace, measured.documents[run], measured.documents[version]
    assert left["stability"] == right["stability"]
    assert set(left["stability"]) == {"certificate", "empirical"}
    certified = workplace.document(f"certify {version}")
    # What is observed is compared with the certificate for all inputs.
    assert certified.pop("bounded_inputs")["inputs"]["lower"]
    # What a wrong value does is bounded for the data, not observed of the layers.
    assert certified.pop("wrong_sample")["effects"]
    assert certified.pop("in_words")
    assert {"target": version, **right["stability"]["certificate"]} == certified


def test_a_run_gets_pictures_and_a_version_a_record(measured: Measured) -> None:
    workplace, left, right = measured.workplace, measured.documents["digits-run"], measured.documents["digits:1"]
    assert left["plots"] == ["digits-run/plots/jacobian_spectrum.png", "digits-run/plots/gradient_norms.png"]
    assert all(workplace.path(plot).read_bytes()[:4] == b"\x89PNG" for plot in left["plots"])
    assert "records" not in left
    assert "plots" not in right
    (record,) = right["records"]
    files = {name: Path(file["path"]) for name, file in record["files"].items()}
    assert (record["kind"], set(files)) == (
        "stability",
        {"stability.json", "plots/jacobian_spectrum.png", "plots/gradient_norms.png"},
    )
    assert files["plots/gradient_norms.png"].read_bytes()[:4] == b"\x89PNG"
    kept = json.loads(files["stability.json"].read_text())
    version = Registry(workplace.registry).get("digits:1")
    assert kept == {
        "weights": f"sha256:{version.manifest.files['weights.safetensors'].sha256}",
        "data": "digits",
        "split": "test",
        **right["stability"],
    }
    assert version.digest == workplace.document("registry show digits:1")["digest"]
    # Found out once more, it is not kept once more.
    assert stability(workplace, "digits:1")["records"] == [record]
    assert workplace.document("registry verify")["ok"] is True
