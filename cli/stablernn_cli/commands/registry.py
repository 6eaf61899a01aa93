"""`stablernn registry`: the registry of trained models."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stablernn_cli.commands import registry_policy
from stablernn_cli.commands.registry_copy import copy
from stablernn_cli.errors import REFUSED, Reported, UsageError
from stablernn_cli.metric_tables import show_metrics
from stablernn_cli.options import JsonOption, RefArgument
from stablernn_cli.output import Output, count_of, figure, format_names
from stablernn_cli.records import record_document

if TYPE_CHECKING:
    from stablernn_registry import AliasEntry, LogEntry, Record, Registry, Version

app = typer.Typer(
    help="Manage trained models: versions, aliases, integrity", no_args_is_help=True, add_completion=False
)
app.add_typer(registry_policy.app, name="policy")
app.command()(copy)

WhyOption = Annotated[str | None, typer.Option(help="Reason, stored in the model's log.", show_default=False)]
ForceOption = Annotated[bool, typer.Option("--force", help="Move the alias even if a check refuses; needs --why.")]
AliasArgument = Annotated[str, typer.Argument(metavar="NAME@ALIAS", help="The alias and its model.")]


@app.command("list")
def list_(context: typer.Context, as_json: JsonOption = False) -> None:
    """List models, versions and aliases

    Example: stablernn registry list
    """
    from stablernn_registry import Registry

    output = Output.of(context, as_json)
    registry = Registry()
    models = registry.list()
    if as_json:
        output.document(
            [{"name": model.name, "versions": model.versions, "aliases": model.aliases} for model in models]
        )
        return
    output.table(
        ("name", "versions", "aliases"),
        [
            [
                model.name,
                ", ".join(map(str, model.versions)),
                ", ".join(f"{alias} -> {version}" for alias, version in sorted(model.aliases.items())),
            ]
            for model in models
        ],
    )
    output.note(f"Registry: {registry.root}" + ("" if models else " (empty)"))


@app.command()
def show(context: typer.Context, ref: RefArgument, as_json: JsonOption = False) -> None:
    """Show one version: files, metrics, lineage, records

    Example: stablernn registry show digits@production
    """
    from stablernn_registry import Registry
    from stablernn_registry.documents.certificates import describe_bounded_inputs, describe_certificate

    output = Output.of(context, as_json)
    registry = Registry()
    version = registry.get(ref)
    records = registry.records(f"{version.name}:{version.version}")
    document = version_document(version, records)
    if as_json:
        output.document(document)
        return
    manifest = version.manifest
    lineage = manifest.lineage
    bounded = describe_bounded_inputs(manifest.certificate)
    output.facts(
        {
            "digest": version.digest,
            "created": manifest.created,
            "aliases": ", ".join(version.aliases) or "-",
            "task": manifest.task,
            "cell": manifest.cell,
            "data": (lineage.get("data") or {}).get("name", "-"),
            "features": format_names(manifest.features or ()),
            **({"labels": format_names(manifest.labels)} if manifest.labels else {}),
            **({"targets": format_names(manifest.targets)} if manifest.targets else {}),
            **({"horizon": f"{manifest.horizon} steps"} if manifest.horizon else {}),
            "parity": f"max relative error {figure(manifest.parity.get('max_rel_error'))}",
            "certificate": describe_certificate(manifest.certificate),
            **({"bounded inputs": bounded} if bounded is not None else {}),
        },
        title=version.ref,
    )
    show_metrics(output, manifest.metrics)
    _show_robustness(output, version, records)
    output.text()
    output.table(("file", "bytes", "path"), [[n, f["bytes"], f["path"]] for n, f in document["files"].items()])
    # Reports that were attached after publication; the files above never change.
    if records:
        output.text()
        rows = [
            [record["kind"], record["time"], record["who"], name, file["bytes"], file["path"]]
            for record in document["records"]
            for name, file in record["files"].items()
        ]
        output.table(("record", "time", "who", "file", "bytes", "path"), rows, title="Recorded since")


@app.command()
def alias(
    context: typer.Context,
    target: AliasArgument,
    version: Annotated[
        str | None,
        typer.Argument(metavar="VERSION", help="Number of the version.", show_default=False),
    ] = None,
    why: WhyOption = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Point an alias to a version

    The registry's policy must allow it (`stablernn registry policy show`), the version must have a better score than
    the trivial answer on data that it was not fitted on, every file must be as it was published, certificate and
    parity, recomputed from the version's files, must match the stored ones, and the graphs the manifest. Exit code 3:
    one of these checks refused, and the alias was not moved. With --force it is moved anyway; the log records the
    failed checks and the reason.

    Example: stablernn registry alias digits@production 3 --why "98.6 % on the test split"
    """
    from stablernn_cli.promotion_checks import promotion_checks
    from stablernn_registry import Registry

    output = Output.of(context, as_json)
    registry = Registry()
    name, alias_name, number = _parse_alias_and_version(registry, target, version)
    _check_force(force, why)
    # The registry applies its policy; the other checks run here, since they need torch and ONNX Runtime.
    with output.status(f"Checking {name}:{number} ..."):
        checks = promotion_checks(registry, alias_name)
        entry = registry.set_alias(name, alias_name, number, why=why, force=force, checks=checks)
    _report_move(output, name, entry)


@app.command()
def rollback(
    context: typer.Context,
    target: AliasArgument,
    why: WhyOption = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Point an alias back to its previous version

    Each further rollback goes one move further back. The previous version is checked as by `stablernn registry alias`.
    Exit code 3: a check refused, and the alias was not moved.

    Example: stablernn registry rollback digits@production --why "errors on the night shift"
    """
    from stablernn_cli.promotion_checks import promotion_checks
    from stablernn_registry import Registry

    output = Output.of(context, as_json)
    name, alias_name = _parse_alias(target)
    _check_force(force, why)
    registry = Registry()
    with output.status("Checking the previous version ..."):
        checks = promotion_checks(registry, alias_name)
        entry = registry.rollback(name, alias_name, why=why, force=force, checks=checks)
    _report_move(output, name, entry)


@app.command()
def log(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of a model.")],
    as_json: JsonOption = False,
) -> None:
    """Print the log of a model, oldest entry first

    Example: stablernn registry log digits
    """
    from stablernn_registry import Registry

    output = Output.of(context, as_json)
    entries = Registry().log(name)
    if as_json:
        output.document([entry.model_dump(mode="json") for entry in entries])
        return
    output.table(
        ("time", "who", "what", "why"),
        [[entry.time, entry.who, _format_event(entry), entry.why or ""] for entry in entries],
    )


@app.command()
def verify(
    context: typer.Context,
    ref: Annotated[
        str | None,
        typer.Argument(metavar="[REF]", help="A version; default: every byte of the registry.", show_default=False),
    ] = None,
    recompute: Annotated[
        bool, typer.Option("--recompute", help="Also recompute certificate and parity, and compare.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Check every byte against its hash

    With a reference: that version, its records and the registry's own files. With --recompute, the certificate of a
    version and the parity between its graphs and its weights are computed again from its files; the certificate must
    match the stored one, the parity must be within its bounds, and the graphs must have the inputs, outputs and states
    of the manifest. Exit code 3: something differs.

    Example: stablernn registry verify digits@production
    """
    from stablernn_registry import Registry

    output = Output.of(context, as_json)
    registry = Registry()
    # Without torch nothing can be recomputed: one error now, instead of a problem for every version.
    if recompute and importlib.util.find_spec("torch") is None:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")
    with output.status("Reading and hashing every file ..."):
        report = registry.verify(ref)
    document: dict[str, Any] = {
        "ref": report.ref,
        "ok": report.ok,
        "checked": report.checked,
        "problems": list(report.problems),
        "notes": list(report.notes),
    }
    if recompute:
        _recompute(output, registry, ref, document)
    if as_json:
        output.document(document)
    else:
        for problem in document["problems"]:
            output.text(f"problem: {problem}")
        for note in document["notes"]:
            output.text(f"note: {note}")
        versions = count_of(len(document.get("recomputed", ())), "version")
        recomputed = f", {versions} recomputed" if recompute else ""
        problems = count_of(len(document["problems"]), "problem")
        verdict = "everything is as it was published" if document["ok"] else problems
        output.text(f"{report.ref}: {report.checked} files read{recomputed}, {verdict}.")
    if not document["ok"]:
        raise Reported(REFUSED)


def _recompute(output: Output, registry: Registry, ref: str | None, document: dict[str, Any]) -> None:
    """Add to the document of ``verify`` what differs when it is recomputed."""
    from stablernn_cli.promotion_checks import check_signature, recompute
    from stablernn_registry import IntegrityError

    document["recomputed"] = []
    # Listing all versions reads every log; a damaged one does not prevent the check of a named version.
    try:
        refs = [ref] if ref else [f"{model.name}:{number}" for model in registry.list() for number in model.versions]
    except IntegrityError:
        document["notes"].append("Nothing was recomputed, since a log is damaged; name a version of another model.")
        return
    for text in refs:
        try:
            version = registry.get(text)
            with output.status(f"Recomputing certificate and parity of {version.ref} ..."):
                results = (*recompute(registry, version), check_signature(registry, version))
        except IntegrityError:
            # The verification before has listed it as a problem.
            continue
        details = dict(zip(("certificate", "parity", "signature"), (result.detail for result in results), strict=True))
        document["recomputed"].append({"ref": version.ref, **details})
        document["problems"] += [f"'{version.ref}': {res.name}: {res.detail}." for res in results if not res.ok]
    document["ok"] = not document["problems"]


def _show_robustness(output: Output, version: Version, records: Sequence[Record]) -> None:
    """Print the main figures of the report that was published with the version, and of its latest record."""
    from stablernn_registry import RobustnessReport
    from stablernn_registry.documents.reports import ROBUSTNESS

    sources: dict[str, Version | Record] = {"": version} if ROBUSTNESS in version.manifest.files else {}
    recorded = [record for record in records if ROBUSTNESS in record.entry.files]
    if recorded:
        sources[f", recorded {recorded[-1].entry.time}"] = recorded[-1]
    for suffix, source in sources.items():
        # None for a report of a format that this version of stablernn cannot read.
        report = RobustnessReport.parse(source.read(ROBUSTNESS))
        if report is not None:
            output.text()
            output.facts(report.figures(), title=f"Robustness on {report.sample}{suffix}")


def version_document(version: Version, records: Sequence[Record]) -> dict[str, Any]:
    """Return a version with its records, as ``registry show --json`` prints it.

    The certificate in ``manifest`` is the one that counts today: a kind that was withdrawn since is replaced.
    """
    from stablernn_registry.documents.certificates import current_certificate

    manifest = version.manifest.model_dump(mode="json")
    return {
        "name": version.name,
        "version": version.version,
        "digest": version.digest,
        "aliases": list(version.aliases),
        "files": {
            filename: {"bytes": entry.bytes, "sha256": entry.sha256, "path": str(version.path(filename))}
            for filename, entry in version.manifest.files.items()
        },
        "manifest": {**manifest, "certificate": current_certificate(manifest["certificate"])},
        "records": [record_document(record) for record in records],
    }


def _parse_alias_and_version(registry: Registry, target: str, version: str | None) -> tuple[str, str, int]:
    """Parse the two arguments of ``registry alias``.

    Raises:
        UsageError: If they are not NAME@ALIAS and a number; the message shows a command that would work.
    """
    from stablernn_registry import RegistryError, parse_ref
    from stablernn_registry.refs import is_name

    # isdigit alone accepts digits of other scripts.
    if version is not None and version.isascii() and version.isdigit():
        name, alias = _parse_alias(target)
        return name, alias, int(version)
    ref = parse_ref(target)
    # If a space was typed instead of the @, the alias is the second argument.
    alias = ref.alias or (version if version and is_name(version) else "production")
    # Only an example: a model that does not exist yet gets 1.
    try:
        number = ref.version or registry.resolve(ref.name)
    except RegistryError:
        number = 1
    got = f"'{target}' without a version" if version is None else f"'{target} {version}'"
    raise UsageError(
        f"'stablernn registry alias' takes NAME@ALIAS and the number of a version, got {got}. "
        f"For example: 'stablernn registry alias {ref.name}@{alias} {number}'."
    )


def _parse_alias(target: str) -> tuple[str, str]:
    from stablernn_registry import parse_ref

    ref = parse_ref(target)
    if ref.alias is None:
        raise UsageError(f"An alias is written NAME@ALIAS, got '{target}'. For example: '{ref.name}@production'.")
    return ref.name, ref.alias


def _check_force(force: bool, why: str | None) -> None:
    # The log must state why a check was overruled.
    if force and not (why and why.strip()):
        raise UsageError("--force needs a reason, got none. Add --why '...'.")


def _report_move(output: Output, name: str, entry: AliasEntry) -> None:
    document = {"name": name, **entry.model_dump(mode="json")}
    if output.as_json:
        output.document(document)
    else:
        previous = document["from"]
        change = "new" if previous is None else f"was {previous}"
        output.text(f"{name}@{document['alias']} -> version {document['to']} ({change}).")


def _format_event(entry: LogEntry) -> str:
    if entry.action == "publish":
        return f"publish version {entry.version}"
    if entry.action == "record":
        return f"record {entry.kind} of version {entry.version}"
    # The other entries are moves of an alias.
    previous = "nothing" if entry.from_version is None else entry.from_version
    refused = ", ".join(check.name for check in entry.checks if not check.ok)
    forced = f" (forced past: {refused})" if entry.forced else ""
    return f"{entry.action} {entry.alias}: {previous} -> {entry.to_version}{forced}"
