"""`stablernn registry`: the store of trained models."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stablernn_cli.commands import registry_policy
from stablernn_cli.errors import REFUSED, Reported, UsageError
from stablernn_cli.options import RefArgument
from stablernn_cli.output import JsonOption, Output, figure
from stablernn_cli.records import described

if TYPE_CHECKING:
    from stablernn_registry import AliasEntry, LogEntry, Record, Registry, Version

app = typer.Typer(help="Look after trained models: versions, aliases, integrity", no_args_is_help=True)
app.add_typer(registry_policy.app, name="policy")

WhyOption = Annotated[str | None, typer.Option(help="Reason, kept in the model's log.", show_default=False)]
ForceOption = Annotated[bool, typer.Option("--force", help="Move it even if it is refused; needs --why.")]
AliasRef = Annotated[str, typer.Argument(metavar="NAME@ALIAS", help="The alias and the model it belongs to.")]


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
    from stablernn_registry.certificates import describe_certificate

    output = Output.of(context, as_json)
    registry = Registry()
    version = registry.get(ref)
    records = registry.records(f"{version.name}:{version.version}")
    document = describe(version, records)
    if as_json:
        output.document(document)
        return
    manifest = version.manifest
    lineage = manifest.lineage
    output.facts(
        {
            "digest": version.digest,
            "created": manifest.created,
            "aliases": ", ".join(version.aliases) or "-",
            "task": manifest.task,
            "cell": manifest.cell,
            "data": (lineage.get("data") or {}).get("name", "-"),
            "features": _listed(manifest.features),
            **({"labels": _listed(manifest.labels)} if manifest.labels else {}),
            **({"targets": _listed(manifest.targets)} if manifest.targets else {}),
            **({"horizon": f"{manifest.horizon} steps"} if manifest.horizon else {}),
            "parity": f"max relative error {figure(manifest.parity.get('max_rel_error'))}",
            "certificate": describe_certificate(manifest.certificate),
        },
        title=version.ref,
    )
    show_metrics(output, manifest.metrics)
    _show_robustness(output, version, records)
    output.text()
    output.table(("file", "bytes", "path"), [[n, f["bytes"], f["path"]] for n, f in document["files"].items()])
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
    target: AliasRef,
    version: Annotated[
        str | None,
        typer.Argument(metavar="VERSION", help="Number of the version it shall point to.", show_default=False),
    ] = None,
    why: WhyOption = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Point an alias to a version

    The registry's policy must allow it (`stablernn registry policy show`), every file must be as it was published,
    certificate and parity, computed anew from the version's files, must be what was stored, and the graphs what the
    manifest says. Exit code 3: one of these refused, and the alias stays where it was. With --force it moves all the
    same; the log keeps what refused, and why.

    Example: stablernn registry alias digits@production 3 --why "98.6 % on the test split"
    """
    from stablernn_cli.promotion_checks import promotion_checks
    from stablernn_registry import Registry

    output = Output.of(context, as_json)
    registry = Registry()
    name, word, number = _alias_and_version(registry, target, version)
    _check_force(force, why)
    with output.status(f"Checking {name}:{number} ..."):
        entry = registry.set_alias(name, word, number, why=why, force=force, checks=promotion_checks(registry, word))
    _report_move(output, name, entry)


@app.command()
def rollback(
    context: typer.Context,
    target: AliasRef,
    why: WhyOption = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Point an alias back to where it was before

    Each further rollback goes one move further back. The version it goes back to is checked as by `stablernn registry
    alias`. Exit code 3: it was refused, and the alias stays where it is.

    Example: stablernn registry rollback digits@production --why "errors on the night shift"
    """
    from stablernn_cli.promotion_checks import promotion_checks
    from stablernn_registry import Registry

    output = Output.of(context, as_json)
    name, word = _name_and_alias(target)
    _check_force(force, why)
    registry = Registry()
    with output.status("Checking the version before ..."):
        entry = registry.rollback(name, word, why=why, force=force, checks=promotion_checks(registry, word))
    _report_move(output, name, entry)


@app.command()
def log(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of a model.")],
    as_json: JsonOption = False,
) -> None:
    """Print everything that happened to a model, oldest first

    Example: stablernn registry log digits
    """
    from stablernn_registry import Registry

    output = Output.of(context, as_json)
    entries = Registry().log(name)
    if as_json:
        output.document([entry.model_dump(mode="json") for entry in entries])
        return
    output.table(
        ("time", "who", "what", "why"), [[entry.time, entry.who, _event(entry), entry.why or ""] for entry in entries]
    )


@app.command()
def verify(
    context: typer.Context,
    ref: Annotated[
        str | None,
        typer.Argument(metavar="[REF]", help="A version; default: every byte of the registry.", show_default=False),
    ] = None,
    recompute: Annotated[
        bool, typer.Option("--recompute", help="Compute certificate and parity anew, too, and compare.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Check every byte against its hash

    With a reference, that version, what was recorded of it and the registry's own files. With --recompute, what is
    proved of a version's stability and how far its graphs are from its weights are computed anew from its files; the
    certificate must be the stored one, the parity within its bounds, and the graphs must have the inputs, outputs and
    states of the manifest. Exit code 3: something differs.

    Example: stablernn registry verify digits@production
    """
    from stablernn_registry import Registry

    output = Output.of(context, as_json)
    registry = Registry()
    # Where it is not installed, that is no problem of the registry's: said at once, and not of every version.
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
        count = len(document.get("recomputed", ()))
        computed = f", {count} version{'' if count == 1 else 's'} computed anew" if recompute else ""
        problems = len(document["problems"])
        found = f"{problems} problem{'' if problems == 1 else 's'}"
        verdict = "everything is as it was published" if document["ok"] else found
        output.text(f"{report.ref}: {report.checked} files read{computed}, {verdict}.")
    if not document["ok"]:
        raise Reported(REFUSED)


def _recompute(output: Output, registry: Registry, ref: str | None, document: dict[str, Any]) -> None:
    """Adds to what ``verify`` found what comes out differently when it is computed anew."""
    from stablernn_cli.promotion_checks import check_signature, recompute
    from stablernn_registry import IntegrityError

    document["recomputed"] = []
    try:
        refs = [ref] if ref else [f"{model.name}:{number}" for model in registry.list() for number in model.versions]
    except IntegrityError:
        document["notes"].append("Nothing was computed anew, for a log is damaged; name a version of another model.")
        return
    for one in refs:
        try:
            version = registry.get(one)
            with output.status(f"Computing certificate and parity of {version.ref} anew ..."):
                results = (*recompute(registry, version), check_signature(registry, version))
        except IntegrityError:
            # One of the problems already.
            continue
        said = dict(zip(("certificate", "parity", "signature"), (result.detail for result in results), strict=True))
        document["recomputed"].append({"ref": version.ref, **said})
        document["problems"] += [f"'{version.ref}': {r.name}: {r.detail}." for r in results if not r.ok]
    document["ok"] = not document["problems"]


def _show_robustness(output: Output, version: Version, records: Sequence[Record]) -> None:
    """The main figures of the version's own report, and of the last one that was recorded of it."""
    from stablernn_registry import RobustnessReport
    from stablernn_registry.reports import ROBUSTNESS

    sources: dict[str, Version | Record] = {"": version} if ROBUSTNESS in version.manifest.files else {}
    recorded = [record for record in records if ROBUSTNESS in record.entry.files]
    if recorded:
        sources[f", recorded {recorded[-1].entry.time}"] = recorded[-1]
    for when, source in sources.items():
        report = RobustnessReport.parse(source.read(ROBUSTNESS))
        if report is not None:
            output.text()
            output.facts(report.figures(), title=f"Robustness on {report.sample}{when}")


def describe(version: Version, records: Sequence[Record]) -> dict[str, Any]:
    """A version as ``registry show --json`` prints it, with what was recorded of it.

    The certificate in ``manifest`` is the one that counts today: of a kind that was withdrawn since it is not proved.
    """
    from stablernn_registry.certificates import current_certificate

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
        "records": [described(record) for record in records],
    }


def show_metrics(output: Output, metrics: dict[str, Any]) -> None:
    """Figures by split, one column a split; figures of the naive forecasts stand below with their name in front."""
    columns = {split: _flat(figures) for split, figures in metrics.items() if isinstance(figures, dict)}
    names = list(dict.fromkeys(name for figures in columns.values() for name in figures))
    if names:
        output.text()
        output.table(
            ("metric", *columns), [[name, *(figures.get(name) for figures in columns.values())] for name in names]
        )


def data_notes(notes: Mapping[str, Any]) -> str | None:
    """What is to be known of the data beside its scores, in one line; None where there is nothing."""
    words = {"partial": "only in part, missing or short:", "unchecked": "with no published checksum to hold against:"}
    parts = [f"{words[key]} {', '.join(notes[key])}" for key in words if key in notes]
    if "counts" in notes:
        from stablernn.data.notes import format_counts

        parts.append(format_counts(notes["counts"]))
    return f"Data: {'; '.join(parts)}." if parts else None


def _flat(figures: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in figures.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{name} ")
        else:
            flat[prefix + name] = value
    return flat


def _alias_and_version(registry: Registry, target: str, version: str | None) -> tuple[str, str, int]:
    """Reads the two arguments of ``registry alias``.

    Raises:
        UsageError: If they are not NAME@ALIAS and a number; the sentence shows the command that was meant.
    """
    from stablernn_registry import RegistryError, parse_ref
    from stablernn_registry.refs import is_name

    if version is not None and version.isascii() and version.isdigit():
        name, alias = _name_and_alias(target)
        return name, alias, int(version)
    ref = parse_ref(target)
    # Written with a space in place of the @, the alias is the second word.
    alias = ref.alias or (version if version and is_name(version) else "production")
    try:
        number = ref.version or registry.resolve(ref.name)
    except RegistryError:
        number = 1
    got = f"'{target}' without a version" if version is None else f"'{target} {version}'"
    raise UsageError(
        f"'stablernn registry alias' takes NAME@ALIAS and the number of a version, got {got}. "
        f"Write 'stablernn registry alias {ref.name}@{alias} {number}' for example."
    )


def _name_and_alias(target: str) -> tuple[str, str]:
    from stablernn_registry import parse_ref

    ref = parse_ref(target)
    if ref.alias is None:
        raise UsageError(f"An alias is written NAME@ALIAS, got '{target}'. Write '{ref.name}@production' for example.")
    return ref.name, ref.alias


def _check_force(force: bool, why: str | None) -> None:
    if force and not (why and why.strip()):
        raise UsageError("--force needs a reason, got none. Add --why '...'.")


def _report_move(output: Output, name: str, entry: AliasEntry) -> None:
    document = {"name": name, **entry.model_dump(mode="json")}
    if output.as_json:
        output.document(document)
    else:
        before = document["from"]
        came = "new" if before is None else f"was {before}"
        output.text(f"{name}@{document['alias']} -> version {document['to']} ({came}).")


def _event(entry: LogEntry) -> str:
    if entry.action == "publish":
        return f"publish version {entry.version}"
    if entry.action == "record":
        return f"record {entry.kind} of version {entry.version}"
    before = "nothing" if entry.from_version is None else entry.from_version
    refused = ", ".join(check.name for check in entry.checks if not check.ok)
    forced = f" (forced past: {refused})" if entry.forced else ""
    return f"{entry.action} {entry.alias}: {before} -> {entry.to_version}{forced}"


def _listed(names: list[str] | None, at_most: int = 12) -> str:
    names = names or []
    shown = ", ".join(names[:at_most])
    return f"{shown}, ... ({len(names)})" if len(names) > at_most else shown
