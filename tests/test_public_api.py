"""The public face of the distribution: exported names and the contents of the wheel."""

from __future__ import annotations

import importlib
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from packages import PACKAGES, ROOT


def run_python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_only_the_library_in_use_loads_torch(tmp_path: Path) -> None:
    """One process imports all that must not, reads a table and lists models; the library itself comes last."""
    path = tmp_path / "d.csv"
    path.write_text("ds,y\n" + "".join(f"{step},{step % 7}\n" for step in range(60)))
    code = f"""
import sys
from importlib import import_module

def loaded(*names):
    return [name for name in names if name in sys.modules]

from stablernn_registry import Registry
Registry({str(tmp_path / "registry")!r}).list()
print(loaded("filelock", "stablernn_registry.verify", "stablernn_registry.card"))
for package in ("client", "runtime", "server", "cli.main"):
    import_module(f"stablernn_{{package}}")
    print(loaded("torch", "stablernn"))
from stablernn.data import load_data
data = load_data({str(path)!r}, horizon=2)
assert len(data.windows("test")) > 0
for package in ("stablernn.training", "stablernn.training.stored_runs"):
    import_module(package)
print(loaded("torch"))
import stablernn.training.train_model
print(loaded("torch", "scipy", "matplotlib"))
"""
    assert run_python(code).splitlines() == ["[]"] * 6 + ["['torch']"]


def test_the_names_of_the_registry_are_imported_when_they_are_used() -> None:
    code = (
        "import stablernn_registry as registry, sys; before = 'stablernn_registry.registry' in sys.modules; "
        "names = {name: getattr(registry, name) for name in registry.__all__}; "
        "print(before, set(names) <= set(dir(registry)), names['Registry'] is registry.registry.Registry, "
        "hasattr(registry, 'Regsitry'))"
    )
    assert run_python(code) == "False True True False"


@pytest.mark.parametrize(
    "modules",
    [[], pytest.param(["stablernn.export.step", "stablernn.training.loaded_run"], marks=pytest.mark.slow)],
    ids=["first", "after modules below them"],
)
def test_functions_named_like_packages_can_be_called_in_either_order_of_imports(
    modules: list[str], tmp_path: Path
) -> None:
    # An unknown format is refused by the function itself, before the graphs, which take most of the time of an export.
    code = (
        f"import {', '.join([*modules, 'stablernn as srn'])}\n"
        "import inspect, pickle; export = pickle.loads(pickle.dumps(srn.export))\n"
        "print(*inspect.signature(export).parameters)\n"
        f"try: export(srn.Classifier('gru', 1, 2, 3), {str(tmp_path)!r}, formats=['onxx'])\n"
        "except ValueError as error: print(error)\n"
        "from stablernn.training import evaluate; from stablernn import training\n"
        "print(evaluate.__name__, callable(training.evaluate), 'evaluate' in dir(training))"
    )
    assert run_python(code).splitlines() == [
        "model folder formats steps inputs_within frequency longest",
        "Unknown format 'onxx'. Did you mean 'onnx'? It is one of onnx, torchscript.",
        "evaluate True True",
    ]


def test_public_names_and_modules_are_found_when_asked_for() -> None:
    code = (
        "import stablernn; print('certify' in dir(stablernn), hasattr(stablernn, 'nothing'), "
        "hasattr(stablernn, 'no.thing'), stablernn.nn.models.Classifier is stablernn.Classifier)"
    )
    assert run_python(code) == "True False False True"


@pytest.mark.parametrize(
    "package",
    ["stablernn", "stablernn_client", "stablernn_registry", "stablernn_runtime", "stablernn_server", "stablernn.cells"],
)
def test_exported_names_exist_and_are_sorted(package: str) -> None:
    module = importlib.import_module(package)
    assert sorted(module.__all__) == sorted(set(module.__all__))
    assert all(hasattr(module, name) for name in module.__all__)


@pytest.mark.slow
def test_the_wheels_hold_the_packages_and_their_data(tmp_path: Path) -> None:
    for project in (".", "client", "registry", "runtime", "server", "papers"):
        command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
        subprocess.run(command, cwd=ROOT / project, check=True, capture_output=True)
    names = {name for wheel in tmp_path.glob("*.whl") for name in zipfile.ZipFile(wheel).namelist()}
    assert {name.partition("/")[0] for name in names if ".dist-info/" not in name} == set(PACKAGES)
    assert all(f"{package}/py.typed" in names for package in PACKAGES)
    expected = {
        path.relative_to(folder.parent).as_posix()
        for folder in PACKAGES.values()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert expected <= names
