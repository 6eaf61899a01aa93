"""`stablernn export`: from a run to a registry version."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stablernn_cli.errors import FAILED, CommandError, UsageError, exit_code_of
from stablernn_cli.options import RunArgument
from stablernn_cli.output import JsonOption, Output, figure, plain
from stablernn_cli.promotion_checks import promotion_checks
from stablernn_cli.targets import is_run

if TYPE_CHECKING:
    from stablernn.export import ExportReport
    from stablernn.training import LoadedRun
    from stablernn_registry import ManifestFields, RobustnessReport


def export(
    context: typer.Context,
    run: RunArgument,
    name: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="Name in the registry; an existing one gets its next version.", show_default=False
        ),
    ],
    formats: Annotated[
        list[str] | None,
        typer.Option(
            "--format",
            metavar="FORMAT",
            help="onnx or torchscript (deprecated in torch), may be repeated; onnx is always written.",
            show_default="onnx",
        ),
    ] = None,
    alias: Annotated[
        str | None, typer.Option(metavar="ALIAS", help="Point this alias to the new version.", show_default=False)
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Export a run into the registry

    Writes the step graph and the sequence graph, compares both with torch at several lengths and batch sizes, and
    publishes them with weights, figures and lineage as the next version of NAME. Nothing is published when the numbers
    differ. Exit code 3: the version is published, but a check refused to move the alias.

    Example: stablernn export runs/digits-lipschitz-1 --name digits --alias production
    """
    output = Output.of(context, as_json)
    document = publish(output, run, name, formats=formats or ("onnx",), alias=alias)
    if as_json:
        output.document(document)
    else:
        show(output, document)
        output.note(f"Next: stablernn serve --model {document['ref']}")


def publish(
    output: Output, run: Path, name: str, *, formats: Sequence[str] = ("onnx",), alias: str | None = None
) -> dict[str, Any]:
    """Export, publish and set the alias; what ``export --json`` prints."""
    from stablernn_registry import GateRefused, Registry, RegistryError, StorageError, model_card
    from stablernn_registry.documents.reports import ROBUSTNESS, ROBUSTNESS_PLOTS

    check_names(name, alias)
    if not is_run(run):
        raise UsageError(f"There is no run in '{run}'. Give the directory that `stablernn train` named.")
    with output.status(f"Exporting {run} and comparing the graphs with torch ..."):
        from stablernn.export import export as write
        from stablernn.training import load_run

        loaded = load_run(run)
        with tempfile.TemporaryDirectory(prefix="stablernn-export-") as folder:
            steps = loaded.data.get("context_length") or loaded.data["longest"]
            report = write(loaded.model, folder, formats=formats, steps=steps)
            calibration = _calibration(loaded)
            fields = _fields(loaded, report, calibration)
            robustness, left_out = _robustness(run, report)
            files = dict(report.files)
            for filename, content in (
                ("metrics.json", json.dumps(fields.metrics, indent=2, sort_keys=True) + "\n"),
                ("README.md", model_card(fields, name, robustness)),
            ):
                files[filename] = Path(folder) / filename
                files[filename].write_text(content, encoding="utf-8")
            plots = {f"plots/{plot.name}": plot for plot in sorted((run / "plots").glob("*.png"))}
            if robustness is None:
                plots = {filename: plot for filename, plot in plots.items() if filename not in ROBUSTNESS_PLOTS}
            else:
                files[ROBUSTNESS] = run / ROBUSTNESS
            files |= plots
            if calibration is not None:
                files["calibration.json"] = Path(folder) / "calibration.json"
                files["calibration.json"].write_text(json.dumps(calibration, indent=2) + "\n", encoding="utf-8")
            registry = Registry()
            version = registry.publish(name, files, fields)
    if left_out is not None:
        output.note(f"Note: {left_out} See `stablernn eval {run} --robustness`.")
    if loaded.summary is None:
        output.note(f"Note: the run was not finished, so no figures are stored. See `stablernn eval {version.ref}`.")
    document: dict[str, Any] = {
        "ref": version.ref,
        "digest": version.digest,
        "files": {n: {"bytes": e.bytes, "sha256": e.sha256} for n, e in version.manifest.files.items()},
        "parity": version.manifest.parity,
        "certificate": version.manifest.certificate,
        "aliases": [],
        "registry": str(registry.root),
    }
    if alias is not None:
        output.note(f"Published {version.ref}.")
        try:
            registry.set_alias(
                name, alias, version.version, why=f"export of {run.name}", checks=promotion_checks(registry, alias)
            )
        except GateRefused:
            raise
        except RegistryError as error:
            # Whoever repeats the export because of this error would publish the same model twice.
            is_set = isinstance(error, StorageError) and error.is_done
            outcome = "is published" if is_set else "is published, and only its alias is left to set"
            raise CommandError(f"'{version.ref}' {outcome}. {error}", exit_code_of(error) or FAILED) from error
        document["aliases"] = [alias]
    return document


def show(output: Output, document: Mapping[str, Any]) -> None:
    """The new version for people."""
    from stablernn_registry.documents.certificates import describe_certificate

    parity = document["parity"]
    ref = document["ref"]
    name = ref.partition(":")[0]
    output.facts(
        {
            "version": ref + "".join(f", {name}@{alias}" for alias in document["aliases"]),
            "digest": document["digest"],
            "registry": document["registry"],
            "parity": (
                f"max relative error {figure(parity['max_rel_error'])} over sequences, "
                f"{figure(parity['step_rel_error'])} in one step"
            ),
            "stream equals sequence": "bit for bit" if parity["stream_equals_sequence"] else "no",
            "certificate": describe_certificate(document["certificate"]),
        }
    )
    output.text()
    output.table(("file", "bytes"), [[filename, entry["bytes"]] for filename, entry in document["files"].items()])


def check_names(name: str, alias: str | None = None) -> None:
    """Refuse a name or an alias before the work and not after it."""
    from stablernn_registry import Registry, parse_ref

    ref = parse_ref(name)
    if ref.version is not None or ref.alias is not None:
        raise UsageError(
            f"--name takes a plain name, got '{name}'. The registry numbers versions itself; set an alias with --alias."
        )
    Registry().check_name(name, alias)


def _calibration(run: LoadedRun) -> dict[str, Any] | None:
    """What was fitted after training; the offsets are those of the weights, which are what is exported."""
    path = run.path / "calibration.json"
    if not path.is_file():
        return None
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if "intervals" in found:
        found["intervals"]["offsets"] = run.model.get_buffer("offsets").tolist()
    return found


def _robustness(run: Path, report: ExportReport) -> tuple[RobustnessReport | None, str | None]:
    """The run's robustness report, if it is of the weights that are exported; else why it is left out."""
    from stablernn_registry import RobustnessReport
    from stablernn_registry.documents.reports import ROBUSTNESS

    path = run / ROBUSTNESS
    if not path.is_file():
        return None, None
    found = RobustnessReport.parse(path.read_bytes())
    if found is None:
        return None, f"{path} is left out, for it is no robustness report that this version of stablernn can read."
    weights = hashlib.sha256(report.files["weights.safetensors"].read_bytes()).hexdigest()
    if found.weights != f"sha256:{weights}":
        return None, f"{path} is left out with its pictures, for it is of other weights than those that are exported."
    return found, None


def _summarized(calibration: Mapping[str, Any]) -> dict[str, Any]:
    """The calibration without its long tables."""
    return {
        part: {key: value for key, value in found.items() if key not in ("levels", "offsets")}
        for part, found in calibration.items()
    }


def _fields(run: LoadedRun, report: ExportReport, calibration: Mapping[str, Any] | None) -> ManifestFields:
    """The manifest of a run: what it expects and gives, how good it is, and where it comes from."""
    from stablernn_registry import ManifestFields

    data = run.data
    environment = json.loads((run.path / "env.json").read_text(encoding="utf-8"))
    task = run.config.task
    return ManifestFields.parse(
        plain(
            {
                "task": data["task"],
                "cell": run.config.model.cell,
                "signature": report.signature,
                "output": data.get("output"),
                "labels": data.get("labels"),
                "features": data["features"],
                "targets": data.get("targets"),
                "horizon": data.get("horizon"),
                "context_length": data.get("context_length"),
                "season": data.get("season"),
                "frequency": data.get("frequency"),
                "quantiles": task.quantiles,
                "head": run.config.model.head if data["task"] == "forecast" else None,
                # Manifests say nothing of what a model does not take.
                **{key: data.get(key) or None for key in ("future", "static", "calendar")},
                "preprocessing": {
                    "scaling": data["scaling"],
                    **({"stamps": data["stamps"]} if data.get("stamps") else {}),
                    "missing_values": "NaN in the input; the last observed value is held inside the graphs",
                    **({"calibration": _summarized(calibration)} if calibration else {}),
                },
                "metrics": run.summary["metrics"] if run.summary else {},
                "parity": report.parity,
                "certificate": report.certificate,
                "lineage": {
                    "data": {key: data[key] for key in ("name", "fingerprint", "splits", "notes")},
                    "config": run.config.tree(),
                    "code": {"stablernn": environment["stablernn"], "commit": environment["commit"]},
                    "run": {"id": run.path.resolve().name, "started": environment["time"]},
                },
            }
        )
    )
