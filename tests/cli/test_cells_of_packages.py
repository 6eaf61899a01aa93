"""The cell of another distribution, that of docs/guides/cells.md, and what is said where it is missing or broken."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cli_helpers import UNPLOTTED, Result, Workplace, command
from stablernn_registry import Registry
from stablernn_runtime import ServedModel

PAGE = (Path(__file__).parents[2] / "docs" / "guides" / "cells.md").read_text(encoding="utf-8")
OPTIONS = f"--data digits --hidden-size 8 --max-steps 4 --batch-size 16 {UNPLOTTED}"


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the package of the page is installed."""
    source, target = tmp_path_factory.mktemp("leaky-cells"), tmp_path_factory.mktemp("site")
    for name, block in re.findall(r"```\w+ title=\"leaky-cells/(\S+)\"\n(.*?)```", PAGE, re.DOTALL):
        (source / name).write_text(block, encoding="utf-8")
    words = ("install", "-q", "--no-deps", "--no-build-isolation", "--no-index", "--target", target, source)
    subprocess.run([sys.executable, "-m", "pip", *map(str, words)], check=True)
    return target


class Shell:
    """Runs commands in processes of their own, with or without the package."""

    def __init__(self, workplace: Workplace, package: Path) -> None:
        self._workplace = workplace
        self._package = package

    def __call__(self, *arguments: object, installed: bool = True) -> Result:
        environment = os.environ | self._workplace.environment
        if installed:
            environment["PYTHONPATH"] = str(self._package)
        done = subprocess.run(
            command(*arguments), cwd=self._workplace.folder, env=environment, capture_output=True, text=True
        )
        return Result(done.returncode, done.stdout, done.stderr)

    def ok(self, *arguments: object) -> Any:
        result = self(*arguments, "--json")
        assert result.code == 0, result.err
        return result.json


@pytest.mark.slow
def test_the_cell_of_another_package_trains_exports_and_is_served(package: Path, tmp_path: Path) -> None:
    workplace = Workplace(tmp_path)
    shell = Shell(workplace, package)
    (row,) = shell.ok("cells list lea*")
    assert (row["key"], row["guarantee"]) == ("leaky", "contracting by construction for gain below 1")
    shown = shell.ok("cells show leaky")
    assert (shown["package"], shown["options"]["practical"]) == ("leaky-cells", {"leak": 0.25, "gain": 0.9})
    assert "leaky-cells" in shell("cells show leaky").out
    refused = shell(f"train {OPTIONS} --cell leaky --set model.cell_options.leak=2")
    assert (refused.code, refused.sentence) == (2, "leak must be above 0 and at most 1, got 2.")
    unknown = shell(f"train {OPTIONS} --cell leaky --set model.cell_options.leek=0.5")
    assert (unknown.code, "Did you mean 'leak'?" in unknown.sentence) == (2, True)

    run = ("--run-dir", "run")
    assert shell.ok(f"train {OPTIONS} --cell leaky", *run, "--set", "model.cell_options.leak=0.5")["cell"] == "leaky"
    exported = shell.ok("export run --name leaky")
    assert exported["certificate"]["kind"] == "contracting"
    assert exported["parity"]["stream_equals_sequence"]
    assert shell.ok("certify leaky --require contracting")["kind"] == "contracting"

    # The graphs need no package: this process does not have it.
    model = ServedModel.load(Registry(workplace.registry).get("leaky"), "cpu")
    x = np.random.default_rng(0).normal(8, 4, (2, 12, 1)).astype(np.float32)
    assert np.isfinite(model.run_numpy(x)["probabilities"]).all()
    np.savez(tmp_path / "x.npz", x=x)
    assert shell("predict leaky --input x.npz --output y.csv", installed=False).code == 0

    for words in (("certify", "leaky"), ("eval", "run"), ("train", *run, "--resume"), ("certify", "run")):
        missing = shell(*words, installed=False)
        assert (missing.code, "leaky" in missing.sentence) == (2, True), words
        assert "the package 'leaky-cells', which is not installed here" in missing.sentence, words


BROKEN = {
    "a module that does not load": ("import nothing_like_this", "No module named 'nothing_like_this'"),
    "no cell": ("", "registers no cell of this key"),
    "no cell class": ("import stablernn\n\n\n@stablernn.register_cell('odd')\nclass Odd: pass", "StableCell"),
    "a key that is taken": (
        "import stablernn\n\n\n@stablernn.register_cell('gru')\nclass Odd: pass",
        "registered twice",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_package_that_does_not_load_is_named(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, reason = BROKEN[case]
    install(tmp_path, "odd-cells", "odd_cells", code)
    monkeypatch.syspath_prepend(tmp_path)
    workplace = Workplace(tmp_path)
    sentence = workplace.refusal("cells show odd")
    assert sentence.startswith("The cell 'odd' of the package 'odd-cells' could not be")
    assert reason in sentence
    # The other cells are there.
    listed = workplace("cells list --json")
    assert listed.code == 0
    assert "gru" in [row["key"] for row in json.loads(listed.out)]
    sys.modules.pop("odd_cells", None)


def test_two_packages_with_one_key_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("first", "second"):
        install(tmp_path, name, f"{name}_cells", "")
    monkeypatch.syspath_prepend(tmp_path)
    result = Workplace(tmp_path)("cells", "show", "odd")
    assert result.code == 2
    assert "'first'" in result.sentence
    assert "'second'" in result.sentence


def install(folder: Path, name: str, module: str, code: str) -> None:
    """Install a distribution whose module has the cell ``odd``."""
    (folder / f"{module}.py").write_text(code, encoding="utf-8")
    metadata = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", encoding="utf-8")
    (metadata / "entry_points.txt").write_text(f"[stablernn.cells]\nodd = {module}\n", encoding="utf-8")
