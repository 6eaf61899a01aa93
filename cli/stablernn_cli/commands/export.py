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
from stablernn_cli.options import JsonOption, option
from stablernn_cli.output import Output, figure, plain
from stablernn_cli.promotion_checks import promotion_checks
from stablernn_cli.targets import is_run

if TYPE_CHECKING:
    from stablernn.export import ExportReport
    from stablernn.training import LoadedRun
    from stablernn_registry import ManifestFields, Registry, RobustnessReport, Version


def export(
    context: typer.Context,
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.", show_default=False)],
    name: Annotated[
        str,
        option("Name in the registry; an existing one gets its next version.", metavar="NAME"),
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
    alias: Annotated[str | None, option("Point this alias to the new version.", metavar="ALIAS")] = None,
    intended_use: Annotated[
        str | None,
        option("Intended use, for the model card and certificate documents.", metavar="TEXT"),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Export a run into the registry

    Writes the step graph and the sequence graph, compares both with torch at several lengths and batch sizes, and
    publishes them with weights, metrics and lineage as the next version of NAME. Nothing is published if the numbers
    differ. A model trained with model.resample_steps has no step graph and cannot stream. Exit code 3: the version is
    published, but a check refused to move the alias.

    Example: stablernn export runs/digits-lipschitz-1 --name digits --alias production
    """
    output = Output.of(context, as_json)
    if intended_use is not None and not intended_use.strip():
        raise UsageError("--intended-use takes a text, got an empty one. Leave it out if no use is intended yet.")
    document = publish(output, run, name, formats=formats or ("onnx",), alias=alias, intended_use=intended_use)
    output.answer(document, show)
    if not as_json:
        # An alias is followed when it moves; a number is not.
        output.note(f"Next: stablernn serve --model {f'{name}@{alias}' if alias else document['ref']}")


def publish(
    output: Output,
    run: Path,
    name: str,
    *,
    formats: Sequence[str] = ("onnx",),
    alias: str | None = None,
    intended_use: str | None = None,
) -> dict[str, Any]:
    """Export, publish and set the alias, and return the document that ``export --json`` prints."""
    from stablernn_registry import Registry

    check_names(name, alias)
    if not is_run(run):
        raise UsageError(f"There is no run in '{run}'. Name the directory that `stablernn train` printed.")
    registry = Registry()
    with output.status(f"Exporting {run} and comparing the graphs with torch ..."):
        from stablernn.training import load_run

        loaded = load_run(run)
        version, robustness_note = _write_and_publish(registry, loaded, run, name, formats, intended_use)
    if robustness_note is not None:
        output.note(f"Note: {robustness_note} See `stablernn eval {run} --robustness`.")
    if loaded.summary is None:
        output.note(f"Note: the run was not finished, so no metrics are stored. See `stablernn eval {version.ref}`.")
    if alias is not None:
        output.note(f"Published {version.ref}.")
        _set_alias(registry, version, alias, why=f"export of {run.name}")
    return {
        "ref": version.ref,
        "digest": version.digest,
        "files": {
            filename: {"bytes": file.bytes, "sha256": file.sha256} for filename, file in version.manifest.files.items()
        },
        "parity": version.manifest.parity,
        "certificate": version.manifest.certificate,
        "aliases": [] if alias is None else [alias],
        "registry": str(registry.root),
    }


def _write_and_publish(
    registry: Registry, loaded: LoadedRun, run: Path, name: str, formats: Sequence[str], intended_use: str | None
) -> tuple[Version, str | None]:
    """Write all files of a version and publish them.

    Returns:
        The version, and why a robustness report of the run was left out, if it was.
    """
    from stablernn.certificates.input_range import training_range
    from stablernn.certificates.stored_certificate import series_facts
    from stablernn.export import export as write
    from stablernn_registry import model_card
    from stablernn_registry.reports import EXAMPLE, ROBUSTNESS, ROBUSTNESS_PLOTS

    with tempfile.TemporaryDirectory(prefix="stablernn-export-") as folder:
        # Parity is checked at the length that the model is for: the context, or the longest sequence.
        steps = loaded.data.get("context_length") or loaded.data["longest"]
        report = write(
            loaded.model,
            folder,
            formats=formats,
            steps=steps,
            inputs_within=training_range(loaded.data),
            **series_facts(loaded.data),
        )
        calibration = _calibration(loaded)
        fields = _fields(loaded, report, calibration)
        robustness, robustness_note = _robustness(run, report)
        texts = {
            "metrics.json": json.dumps(fields.metrics, indent=2, sort_keys=True) + "\n",
            "README.md": model_card(fields, name, robustness, intended_use),
        }
        if calibration is not None:
            texts["calibration.json"] = json.dumps(calibration, indent=2) + "\n"
        files = dict(report.files)
        for filename, text in texts.items():
            files[filename] = Path(folder) / filename
            files[filename].write_text(text, encoding="utf-8")
        if (run / EXAMPLE).is_file():
            files[EXAMPLE] = run / EXAMPLE
        plots = {f"plots/{plot.name}": plot for plot in sorted((run / "plots").glob("*.png"))}
        if robustness is None:
            # These plots belong to the report that is left out, or are from one that is gone.
            plots = {filename: plot for filename, plot in plots.items() if filename not in ROBUSTNESS_PLOTS}
        else:
            files[ROBUSTNESS] = run / ROBUSTNESS
        # Publishing copies the files, so it must come before the folder is deleted.
        return registry.publish(name, files | plots, fields), robustness_note


def _set_alias(registry: Registry, version: Version, alias: str, why: str) -> None:
    """Point an alias to the version that was just published.

    Raises:
        stablernn_registry.GateRefused: If a check refuses.
        CommandError: If the registry fails; the message says that the version is published.
    """
    from stablernn_registry import GateRefused, RegistryError, StorageError

    # The registry applies its policy; the checks of the command line are passed with it.
    try:
        registry.set_alias(version.name, alias, version.version, why=why, checks=promotion_checks(registry, alias))
    except GateRefused:
        raise
    except RegistryError as error:
        # A user who repeats the export because of this error would publish the same model twice.
        is_set = isinstance(error, StorageError) and error.is_done
        outcome = "is published" if is_set else "is published, and only its alias is left to set"
        raise CommandError(f"'{version.ref}' {outcome}. {error}", exit_code_of(error) or FAILED) from error


def show(output: Output, document: Mapping[str, Any]) -> None:
    """Print the new version as text."""
    from stablernn_registry.certificates import describe_certificate

    parity, certificate = document["parity"], document["certificate"]
    ref = document["ref"]
    name = ref.partition(":")[0]
    output.facts(
        {
            "version": ref + "".join(f", {name}@{alias}" for alias in document["aliases"]),
            "digest": document["digest"],
            "registry": document["registry"],
            **_parity_facts(parity),
            "certificate": describe_certificate(certificate),
            "in words": " ".join(certificate["in_words"]),
        }
    )
    output.text()
    output.table(("file", "bytes"), [[filename, entry["bytes"]] for filename, entry in document["files"].items()])


def _parity_facts(parity: Mapping[str, Any]) -> dict[str, str]:
    error = f"max relative error {figure(parity['max_rel_error'])} over sequences"
    if "step_rel_error" not in parity:
        return {
            "parity": error,
            "streams": "none: the model resamples complete sequences, and is classified after the last sample only",
        }
    return {
        "parity": f"{error}, {figure(parity['step_rel_error'])} in one step",
        "stream equals sequence": "bit for bit" if parity["stream_equals_sequence"] else "no",
    }


def check_names(name: str, alias: str | None = None) -> None:
    """Reject a bad name or alias before the work instead of after it."""
    from stablernn_registry import Registry, parse_ref

    # A reference such as NAME:3 has a valid syntax too.
    ref = parse_ref(name)
    if ref.version is not None or ref.alias is not None:
        raise UsageError(
            f"--name takes a plain name, got '{name}'. The registry numbers versions itself; set an alias with --alias."
        )
    Registry().check_name(name, alias)


def _calibration(run: LoadedRun) -> dict[str, Any] | None:
    """Return the calibration that was fitted after training, with the offsets of the weights that are exported."""
    path = run.path / "calibration.json"
    if not path.is_file():
        return None
    calibration: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if "intervals" in calibration:
        calibration["intervals"]["offsets"] = run.model.get_buffer("offsets").tolist()
    return calibration


def _robustness(run: Path, report: ExportReport) -> tuple[RobustnessReport | None, str | None]:
    """Return the run's robustness report if it is about the exported weights, else the reason to leave it out."""
    from stablernn_registry import RobustnessReport
    from stablernn_registry.reports import ROBUSTNESS

    path = run / ROBUSTNESS
    if not path.is_file():
        return None, None
    robustness = RobustnessReport.parse(path.read_bytes())
    if robustness is None:
        return None, f"{path} is left out: it is not a robustness report that this version of stablernn can read."
    # The report of a run may be older than its weights: a resumed run goes on training.
    weights = hashlib.sha256(report.files["weights.safetensors"].read_bytes()).hexdigest()
    if robustness.weights != f"sha256:{weights}":
        return None, f"{path} is left out with its plots: it is about other weights than the exported ones."
    return robustness, None


def _summarize(calibration: Mapping[str, Any]) -> dict[str, Any]:
    """Return the calibration without its long tables, which are in calibration.json."""
    return {
        part: {key: value for key, value in facts.items() if key not in ("levels", "offsets")}
        for part, facts in calibration.items()
    }


def _repairs(run: LoadedRun) -> dict[str, Any]:
    """Return the repairs of the training data that were asked for, which files of prediction get as well."""
    repairs = run.config.data.repairs.model_dump(mode="json", exclude_defaults=True)
    return {"repairs": repairs} if repairs else {}


def _fields(run: LoadedRun, report: ExportReport, calibration: Mapping[str, Any] | None) -> ManifestFields:
    """Return the manifest of a run: inputs and outputs, metrics, and lineage."""
    from stablernn_registry import ManifestFields

    data = run.data
    environment = json.loads((run.path / "env.json").read_text(encoding="utf-8"))
    task = run.config.task
    return ManifestFields.parse(
        plain(
            {
                # A simulation is served as any answer at every step.
                "task": run.model.task,
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
                # None for models that have no choice of heads.
                "head": run.model.config().get("head"),
                # None for inputs that the model does not take, which the manifest leaves out.
                **{key: data.get(key) or None for key in ("future", "static", "calendar")},
                "preprocessing": {
                    "scaling": data["scaling"],
                    **({"stamps": data["stamps"]} if data.get("stamps") else {}),
                    **_repairs(run),
                    **({"resampling": data["resampling"]} if data.get("resampling") else {}),
                    "missing_values": "NaN in the input; the last observed value is held inside the graphs",
                    **({"calibration": _summarize(calibration)} if calibration else {}),
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
