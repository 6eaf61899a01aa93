"""Identity of the model of a certificate document: name, digests, intended use, training data and code."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stablernn_cli.report.claims import claimed_radius
from stablernn_cli.report.reading import number_at, text_at, value_at

if TYPE_CHECKING:
    from stablernn.nn.models import SequenceModel
    from stablernn_registry import Version

NOT_STATED = "not stated in the model card"
NO_CARD = "not stated: a run directory has no model card"
MAX_NAMES = 40
"""Names of features and labels that are listed one by one."""
_CARD = "README.md"
_HEADING = re.compile(r"^(#{1,6})\s+(.*?)\s*#*\s*$")
_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})")
_INTENDED_USE = re.compile(r"^intended (use|uses|purpose)\b", re.IGNORECASE)


def run_facts(path: Path, model: SequenceModel) -> dict[str, Any]:
    """Return the facts of a run directory, which has neither digest nor history."""
    from stablernn.atomic_files import read_json
    from stablernn.export.weights import weights_digest
    from stablernn.training.run_directory import RunDirectory

    directory = RunDirectory(path)
    # Runs from before a file was written lack it.
    data = directory.read_data() if directory.data.is_file() else {}
    environment = read_json(directory.environment) if directory.environment.is_file() else {}
    return {
        "source": "run",
        "ref": str(path),
        "name": path.resolve().name,
        "version": None,
        "digest": None,
        "created": text_at(environment, "time"),
        "weights": weights_digest(model),
        "intended_use": {"stated": False, "text": NO_CARD},
        **_data_facts(
            data, data, {"stablernn": value_at(environment, "stablernn"), "commit": value_at(environment, "commit")}
        ),
        **_model_facts(model),
    }


def version_facts(version: Version, model: SequenceModel) -> dict[str, Any]:
    """Return the facts of a registry version.

    Raises:
        stablernn_registry.RegistryError: If a file is damaged.
    """
    manifest = version.manifest
    weights = manifest.files.get("weights.safetensors")
    lineage = manifest.lineage
    return {
        "source": "version",
        "ref": version.ref,
        "name": version.name,
        "version": version.version,
        "digest": version.digest,
        "created": manifest.created,
        # The manifest vouches for it: the digest covers the hash of every file.
        "weights": None if weights is None else f"sha256:{weights.sha256}",
        "intended_use": intended_use(_card_of(version)),
        **_data_facts(manifest.model_dump(mode="json"), lineage.get("data"), lineage.get("code")),
        **_model_facts(model),
    }


def intended_use(card: str | None) -> dict[str, Any]:
    """Return the section of a model card about the intended use.

    Args:
        card: Markdown; None if there is no card.

    Returns:
        ``stated`` and ``text``; the text says so where the card states none.
    """
    # The section ends at the next heading of its level or above; 0 is before it.
    level, lines, fence = 0, [], ""
    for line in (card or "").splitlines():
        marks = _FENCE.match(line)
        if marks is not None and (not fence or marks[1].startswith(fence)):
            fence = "" if fence else marks[1]
        # A # in a block of code begins a comment.
        heading = None if fence else _HEADING.match(line)
        if heading is not None and level and len(heading[1]) <= level:
            break
        if level:
            lines.append(line)
        elif heading is not None and _INTENDED_USE.match(heading[2]):
            level = len(heading[1])
    # The card escapes what would be markup in Markdown.
    text = re.sub(r"\\([\\|`<*\[])", r"\1", "\n".join(lines)).strip()
    return {"stated": bool(text), "text": text or NOT_STATED}


def stored_certificate(version: Version, entry: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the certificate in the manifest beside the one that was computed for this document; None without one."""
    from stablernn_registry.documents.certificates import current_certificate, format_kind, state_radius

    # A kind that was withdrawn since counts as none today.
    stored = current_certificate(version.manifest.certificate)
    if stored is None:
        return None
    return {
        "kind": format_kind(stored),
        "contraction_rate": number_at(stored, "contraction_rate"),
        "radius": state_radius(stored),
        "computed_kind": entry["kind"],
        "computed_contraction_rate": entry["contraction_rate"],
        "computed_radius": claimed_radius(entry),
        "kinds_agree": stored.get("kind") == entry["kind"],
        "bounded_inputs_kind": text_at(stored, "bounded_inputs", "kind"),
        "schema": value_at(stored, "schema"),
        "verify": f"stablernn registry verify {version.ref} --recompute",
    }


def _card_of(version: Version) -> str | None:
    if _CARD not in version.manifest.files:
        return None
    # Any bytes may have been published under this name.
    return version.read(_CARD).decode("utf-8", errors="replace")


def _data_facts(facts: Mapping[str, Any], data: object, code: object) -> dict[str, Any]:
    """Return task, inputs, outputs, training data and code version, from trees that data.json and manifests share."""
    features, labels = _names(facts.get("features")), _names(facts.get("labels"))
    return {
        "task": text_at(facts, "task"),
        "features": features,
        "labels": labels,
        "targets": _names(facts.get("targets")),
        "training_data": {"name": text_at(data, "name"), "fingerprint": text_at(data, "fingerprint")},
        "training_code": {"stablernn": text_at(code, "stablernn"), "commit": text_at(code, "commit")},
    }


def _names(names: object) -> list[str]:
    """Return the first names of a list, and the number of the others as the last entry."""
    # A vocabulary can have thousands of names.
    texts = [str(name) for name in names] if isinstance(names, list) else []
    return texts if len(texts) <= MAX_NAMES else [*texts[:MAX_NAMES], f"and {len(texts) - MAX_NAMES} more"]


def _model_facts(model: SequenceModel) -> dict[str, Any]:
    """Return the cell with its paper, sizes of the layers, and the scaling of the inputs."""
    from stablernn.cells import StableCell, cell_info

    cells = [cell for cell in model.rnn.modules() if isinstance(cell, StableCell)]
    info = cell_info(cells[0].key)
    return {
        "cell": cells[0].key,
        "cell_title": info.title,
        "paper": info.paper,
        "layers": len(model.rnn.first.cells),
        "members": len(model.rnn),
        "units": cells[0].hidden_size,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "scaling": model.scaling.kind,
        "resample_steps": None if model.resampling is None else model.resampling.steps,
        "patch_size": model.patches.size,
        "patch_stride": model.patches.stride,
        "embedding": bool(model.rnn.embedding),
        "irregular_time": model.max_dt is not None,
    }
