"""`stablernn doctor`: a check of the installation, with remedies for what is missing."""

from __future__ import annotations

import importlib
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from stablernn_cli import installed_version
from stablernn_cli.errors import FAILED, Reported
from stablernn_cli.options import JsonOption, option
from stablernn_cli.output import Output

# An ONNX graph of one Identity node, to try providers with; as bytes, since a serving image has no onnx.
TINY_GRAPH = bytes.fromhex(
    "08093a440a100a017812017922084964656e74697479120474696e795a140a0178120f0a0d080112090a0712056261746368"
    "62140a0179120f0a0d080112090a071205626174636842040a001014"
)


@dataclass
class Findings:
    """Problems of an installation.

    Attributes:
        problems: ``{"what", "fix", "essential"}``; an essential problem breaks some command.
    """

    problems: list[dict[str, Any]] = field(default_factory=list)

    def add(self, message: str, fix: str, *, essential: bool = False) -> None:
        """Add a problem with its remedy."""
        self.problems.append({"what": message, "fix": fix, "essential": essential})

    @property
    def ok(self) -> bool:
        """True if everything essential works."""
        return not any(problem["essential"] for problem in self.problems)


def doctor(
    context: typer.Context,
    models: Annotated[
        list[str] | None,
        option(
            "Version to open as `serve` does, to see the engine and the devices that it gets and what was "
            "measured for them; may be repeated.",
            "--model",
            metavar="REF",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Check versions, devices and folders

    Prints what is missing and how to install it. Exit code 1: something that every user needs is broken.

    Example: stablernn doctor
    """
    output = Output.of(context, as_json)
    with output.status("Checking the installation ..."):
        document = examine(models or ())
    output.answer(document, _show)
    if not document["ok"]:
        raise Reported(FAILED)


def examine(models: Sequence[str] = ()) -> dict[str, Any]:
    """Return the document that ``doctor --json`` prints.

    Args:
        models: Versions to open.

    Raises:
        RegistryError: If the registry has no such version.
    """
    findings = Findings()
    packages = _packages(findings)
    torch = _torch(findings)
    runtime = _onnxruntime(findings)
    folders = _folders(findings)
    opened = [_open_model(ref, findings) for ref in models]
    return {
        "ok": findings.ok,
        "stablernn": installed_version(),
        "python": platform.python_version(),
        "executable": sys.executable,
        "platform": platform.platform(),
        # The CPUs that this process may use, fewer than the machine has in a container.
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "packages": packages,
        "torch": torch,
        "onnxruntime": runtime,
        "folders": folders,
        "models": opened,
        "problems": findings.problems,
    }


def _packages(findings: Findings) -> dict[str, dict[str, str | None]]:
    """Return version and requirement of every package that the installation requires on this platform."""
    from importlib import metadata

    from packaging.requirements import Requirement

    packages: dict[str, dict[str, str | None]] = {}
    _check_single_runtime(findings)
    if installed_version() is None:
        findings.add("stablernn runs from a checkout that is not installed.", "pip install -e . in the checkout")
        return packages
    for text in metadata.requires("stablernn") or ():
        requirement = Requirement(text)
        # For this platform, and without extras.
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        if requirement.name == "onnxruntime-gpu" and not _version(requirement.name) and _version("onnxruntime"):
            # A serving image for the CPU has onnxruntime; the two packages must not be installed together.
            requirement.name = "onnxruntime"
        version = _version(requirement.name)
        packages[requirement.name] = {"version": version, "required": str(requirement.specifier)}
        if version is None:
            findings.add(
                f"{requirement.name} is not installed.", f"pip install '{requirement.name}{requirement.specifier}'"
            )
        elif not requirement.specifier.contains(version, prereleases=True):
            findings.add(
                f"{requirement.name} {version} is installed, {requirement.specifier} is required.",
                f"pip install '{requirement.name}{requirement.specifier}'",
            )
    return packages


def _check_single_runtime(findings: Findings) -> None:
    """Add a problem if both packages of ONNX Runtime are installed, which share one folder."""
    version = _version("onnxruntime-gpu")
    if not version or not _version("onnxruntime"):
        return
    # Uninstalling one removes files of the other too, so the other must be installed again.
    findings.add(
        "onnxruntime and onnxruntime-gpu are both installed and overwrite each other's files; onnxruntime-gpu "
        "includes all of onnxruntime.",
        f"pip uninstall onnxruntime, then pip install --force-reinstall --no-deps onnxruntime-gpu=={version}",
    )


def _version(package: str) -> str | None:
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _torch(findings: Findings) -> dict[str, Any]:
    torch = _import("torch", findings, needed_for="train, eval of runs and export")
    if torch is None:
        return {"works": False}
    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    # A build with CUDA on a machine without a GPU is fine.
    if not gpus and torch.version.cuda is None:
        findings.add(
            f"torch {torch.__version__} is built without CUDA; training uses the CPU.",
            "Only if this machine has an NVIDIA GPU: pip install torch from the CUDA 13 index",
        )
    return {
        "works": True,
        "version": torch.__version__,
        "cuda": torch.version.cuda,
        "gpus": gpus,
        "threads": torch.get_num_threads(),
    }


def _onnxruntime(findings: Findings) -> dict[str, Any]:
    """Return the providers of this build, and the devices on which a graph really runs here."""
    runtime = _import("onnxruntime", findings, needed_for="serve, eval and predict of registry versions")
    if runtime is None:
        return {"works": False}
    from stablernn_runtime.engines.devices import INSTALL, missing_libraries

    usable = {"cpu": _try_device("cpu"), "cuda": _try_device("cuda")}
    if not usable["cpu"]["usable"]:
        findings.add(str(usable["cpu"]["reason"]), "Install stablernn again", essential=True)
    missing = missing_libraries()
    if missing:
        findings.add(
            f"ONNX Runtime cannot load {', '.join(missing)}; serving uses the CPU.",
            f"Only if this machine has an NVIDIA GPU: {INSTALL}",
        )
    return {
        "works": usable["cpu"]["usable"],
        "version": runtime.__version__,
        "providers": runtime.get_available_providers(),
        "devices": usable,
        "missing_libraries": list(missing),
        "gpus": _gpus(findings),
    }


def _try_device(device: Literal["cpu", "cuda"], device_id: int | None = None) -> dict[str, Any]:
    """Run a graph on a device: a build lists CUDA also where its libraries or the GPU are missing."""
    import numpy as np

    from stablernn_runtime.engines.session import RUN_ERRORS, GpuOptions, choose_device, open_session
    from stablernn_runtime.errors import ServingError

    errors: tuple[type[Exception], ...] = (ServingError, *RUN_ERRORS)
    try:
        session = open_session(TINY_GRAPH, "the test graph", choose_device(device, GpuOptions(device_id)), threads=1)
        session.run(None, {"x": np.zeros(1, np.float32)})
    except errors as error:
        return {"usable": False, "reason": str(error), "provider": None}
    return {"usable": True, "reason": None, "provider": session.get_providers()[0]}


def _gpus(findings: Findings) -> list[dict[str, Any]]:
    """Return the GPUs that the driver reports, and whether ONNX Runtime can use each."""
    from stablernn_runtime.engines.devices import read_driver

    driver = read_driver()
    gpus = () if driver is None else driver.gpus
    if len({(gpu.name, gpu.memory_bytes) for gpu in gpus}) > 1:
        findings.add(
            f"The GPUs differ: {', '.join(map(str, gpus))}; processes of `serve --workers` that are spread over them "
            "differ in speed, and in the last bits of what they compute.",
            "Select one kind with --device-id or CUDA_VISIBLE_DEVICES",
        )
    return [
        {
            "device_id": gpu.device_id,
            "name": gpu.name,
            "memory_bytes": gpu.memory_bytes,
            "compute_capability": gpu.compute_capability,
            **_try_device("cuda", gpu.device_id),
        }
        for gpu in gpus
    ]


def _open_model(ref: str, findings: Findings) -> dict[str, Any]:
    """Open a version with the settings of `serve`, and return where each kind of work runs and why."""
    from stablernn_registry import Registry
    from stablernn_runtime import ServedModel
    from stablernn_runtime.errors import ServingError
    from stablernn_server import Settings

    settings, version = Settings(), Registry().get(ref)
    options = settings.device, settings.threads, settings.engine, settings.gpu_options
    try:
        model = ServedModel.load(version, *options)
    except ServingError as error:
        findings.add(str(error), "See docs/guides/gpu.md")
        return {"ref": version.ref, "error": str(error)}
    placement = model.placement
    return {
        "ref": model.ref,
        "engine": model.engine,
        "engine_note": model.engine_reason,
        "device": placement.device,
        "device_note": placement.reason,
        "device_by_work": placement.by_work or None,
        "measured_ms": placement.measured_ms or None,
    }


def _import(name: str, findings: Findings, *, needed_for: str) -> Any:
    # A package that is installed may still not load: a missing system library, a wheel for another Python.
    try:
        return importlib.import_module(name)
    except (ImportError, OSError) as error:
        remedy = "Install stablernn again"
        if isinstance(error, ModuleNotFoundError) and error.name == name:
            message = f"{name} is not installed"
            remedy += "; a serving image leaves torch out on purpose" if name == "torch" else ""
        else:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            message = f"{name} cannot be imported ({reason})"
        findings.add(f"{message}; {needed_for} need it.", remedy, essential=True)
        return None


def _folders(findings: Findings) -> dict[str, dict[str, Any]]:
    import platformdirs

    from stablernn_registry import Registry

    locations = {
        "registry": (Registry().root, "STABLERNN_REGISTRY"),
        "data": (
            _folder("STABLERNN_DATA", platformdirs.user_data_path("stablernn", appauthor=False) / "data"),
            "STABLERNN_DATA",
        ),
        "cache": (
            _folder("STABLERNN_CACHE", platformdirs.user_cache_path("stablernn", appauthor=False)),
            "STABLERNN_CACHE",
        ),
        "working folder": (Path.cwd(), None),
    }
    folders: dict[str, dict[str, Any]] = {}
    for name, (path, variable) in locations.items():
        writable = _is_writable(path)
        folders[name] = {"path": str(path), "exists": path.exists(), "writable": writable, "set by": variable}
        if not writable:
            remedy = f"Set {variable} to a writable folder" if variable else "Train in a writable folder"
            findings.add(f"The {name} {path} cannot be written to.", remedy)
    return folders


def _folder(variable: str, default: Path) -> Path:
    return Path(os.environ.get(variable) or default).expanduser().absolute()


def _is_writable(path: Path) -> bool:
    """Return True if files can be created in a folder, or the folder itself if it does not exist."""
    # The nearest existing folder decides; the root is its own parent.
    while not path.exists() and path != path.parent:
        path = path.parent
    return path.is_dir() and os.access(path, os.W_OK | os.X_OK)


def _show(output: Output, document: dict[str, Any]) -> None:
    torch, runtime = document["torch"], document["onnxruntime"]
    output.facts(
        {
            "stablernn": document["stablernn"] or "from a checkout that is not installed",
            "python": f"{document['python']} ({document['executable']})",
            "platform": f"{document['platform']}, {document['cpus']} CPUs",
            "torch": _torch_text(torch) if torch["works"] else "does not work",
            "onnxruntime": f"{runtime['version']}, offers {', '.join(runtime['providers'])}"
            if runtime["works"]
            else "does not work",
            **{
                f"  {device}": f"usable ({state['provider']})" if state["usable"] else state["reason"]
                for device, state in runtime.get("devices", {}).items()
            },
            **{
                f"  GPU {gpu['device_id']}": f"{gpu['name']}, {gpu['memory_bytes'] / 2**30:.0f} GiB, "
                + ("usable" if gpu["usable"] else str(gpu["reason"]))
                for gpu in runtime.get("gpus", ())
            },
            **{
                model["ref"]: model["error"]
                if "error" in model
                else f"{model['engine']} on {model['device']}. {model['engine_note']}. {model['device_note']}"
                for model in document["models"]
            },
            **{f"{name}": f"{folder['path']} ({_folder_text(folder)})" for name, folder in document["folders"].items()},
        }
    )
    output.text()
    output.table(
        ("package", "installed", "required"),
        [[name, facts["version"] or "missing", facts["required"]] for name, facts in document["packages"].items()],
    )
    output.text()
    for problem in document["problems"]:
        output.text(f"{'broken' if problem['essential'] else 'note'}: {problem['what']}\n  {problem['fix']}.")
    output.text("Everything essential works." if document["ok"] else "Something essential is broken.")


def _torch_text(torch: dict[str, Any]) -> str:
    gpus = ", ".join(torch["gpus"]) or "no GPU"
    return f"{torch['version']}, {gpus}, {torch['threads']} threads"


def _folder_text(folder: dict[str, Any]) -> str:
    state = "exists" if folder["exists"] else "created when needed"
    return state if folder["writable"] else f"{state}, not writable"
