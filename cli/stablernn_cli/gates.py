"""What a version must pass before an alias of the command line leads to it, beside the registry's own policy.

Its bytes must be the published ones, and what was said of it when it was published must still come out when it is
computed from its own files; its graphs must be those that its manifest describes. The registry holds JSON only: the
computing is the library's, and graphs are opened by what opens them in the server. Both happen in a process of its own
with a deadline and a bound on memory (``recomputing.py``): the files are not trusted before they have passed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from stablernn_cli.recomputing import isolated

if TYPE_CHECKING:
    from stablernn_registry import Check, CheckResult, PolicyRules, Registry, Version

GRAPHS = ("step.onnx", "sequence.onnx")
MODEL = ("config.json", "weights.safetensors", *GRAPHS)
"""What certificate and parity are computed from."""
TOLERANCE = 1e-4
"""By how much, relative to the stored figure, one of a certificate may come out differently on another machine: rates
are found by a search."""
RECOMPUTED = ("certificate recomputed", "parity recomputed")
"""Names of the two checks that compute."""
SIGNATURE = "signature of the graphs"
"""Name of the one that opens the graphs."""
_COMPARED = ("kind", "holds", "norm", "contraction_rate", "states", "state_ball", "state_balls")


def gates(registry: Registry, alias: str) -> list[Check]:
    """The checks of every move of an alias; certificate and parity are computed in one go, by the first that asks."""
    from stablernn_registry import CheckResult, IntegrityError

    done: dict[tuple[str, str], tuple[CheckResult, CheckResult]] = {}

    def both(candidate: Version) -> tuple[CheckResult, CheckResult]:
        # Read at each judgement: where the policy has changed, the registry judges again.
        rules = registry.policy().rules(alias)
        key = candidate.digest, rules.model_dump_json()
        if key not in done:
            try:
                done[key] = recomputed(registry, candidate, rules)
            except IntegrityError:
                first, second = (CheckResult(name, False, "its files are damaged") for name in RECOMPUTED)
                done[key] = first, second
        return done[key]

    def certificate_recomputed(candidate: Version, current: Version | None) -> CheckResult:
        del current
        return both(candidate)[0]

    def parity_recomputed(candidate: Version, current: Version | None) -> CheckResult:
        del current
        return both(candidate)[1]

    def signature_of_the_graphs(candidate: Version, current: Version | None) -> CheckResult:
        del current
        try:
            return signature(registry, candidate, registry.policy().rules(alias))
        except IntegrityError:
            return CheckResult(SIGNATURE, False, "its files are damaged")

    return [files_intact, certificate_recomputed, parity_recomputed, signature_of_the_graphs]


def files_intact(candidate: Version, current: Version | None) -> CheckResult:
    """No alias leads to a version whose bytes are not the published ones."""
    from stablernn_registry import CheckResult, IntegrityError

    del current
    try:
        for filename in candidate.manifest.files:
            candidate.check(filename)
    except IntegrityError as error:
        return CheckResult("files intact", ok=False, detail=str(error).rstrip("."))
    return CheckResult("files intact", ok=True, detail=f"{len(candidate.manifest.files)} files")


def signature(registry: Registry, version: Version, rules: PolicyRules | None = None) -> CheckResult:
    """Return whether the graphs have the inputs, outputs, states and labels that the manifest says.

    It is found out in another process.

    Args:
        registry: Where the version is from.
        version: Any version.
        rules: What the policy asks of it; None asks nothing.

    Raises:
        stablernn_registry.IntegrityError: If a graph is damaged.
    """
    return isolated("signature", registry, version, rules, (SIGNATURE,))[0]


def recomputed(
    registry: Registry, version: Version, rules: PolicyRules | None = None
) -> tuple[CheckResult, CheckResult]:
    """Return whether certificate and parity of a version still come out; one result for each.

    They are computed in another process.

    Args:
        registry: Where the version is from.
        version: Any version.
        rules: What the policy asks of it; None asks nothing.

    Raises:
        stablernn_registry.IntegrityError: If a file is damaged.
    """
    certificate, parity = isolated("recomputed", registry, version, rules, RECOMPUTED)
    return certificate, parity


def open_graphs(version: Version, rules: PolicyRules | None = None) -> CheckResult:
    """Whether the graphs have the inputs, outputs, states and labels that the manifest says: what a server asks.

    A version without graphs has nothing to check, which is in order unless a rule asks for it.

    Args:
        version: Any version.
        rules: What the policy asks of it; None asks nothing.

    Raises:
        stablernn_registry.IntegrityError: If a graph is damaged.
    """
    from stablernn_registry import CheckResult, Signature

    stated = Signature.model_validate(version.manifest.signature)
    missing = [name for name in GRAPHS if name not in version.manifest.files]
    if missing or stated.sequence is None or stated.step is None:
        why = f"the version has no {missing[0]}" if missing else "the manifest has no signature of both graphs"
        return CheckResult(SIGNATURE, not (rules and rules.model_signature), f"nothing to check: {why}")
    for name in version.manifest.files:
        if name in (*GRAPHS, "calibration.json"):
            version.read(name)
    from stablernn_server import ModelLoadError, OnnxModel

    try:
        model = OnnxModel.load(version, "cpu")
    except ModelLoadError as error:
        return CheckResult(SIGNATURE, False, _detail(error).removeprefix(f"'{version.ref}' cannot be served: "))
    states = {name for state in model.states for name in (state.input, state.output)}
    inputs, outputs = (
        ", ".join(name for name in side if name not in states)
        for side in (model.sequence.inputs, model.sequence.outputs)
    )
    return CheckResult(SIGNATURE, True, f"inputs {inputs}, outputs {outputs}, {len(model.states)} states, as stated")


def recompute_both(version: Version, rules: PolicyRules | None = None) -> tuple[CheckResult, CheckResult]:
    """Whether certificate and parity of a version still come out; one result for each.

    A version that says nothing of them, or whose files are no model of ours, has nothing to recompute, which is in
    order unless a rule asks for it.

    Args:
        version: Any version.
        rules: What the policy asks of it; None asks nothing.

    Raises:
        stablernn_registry.IntegrityError: If a file is damaged.
    """
    from stablernn_registry import CheckResult, PolicyRules

    rules = rules or PolicyRules()
    files = {
        name: version.read(name)
        for name in (*MODEL, "certificate.json", "parity.json")
        if name in version.manifest.files
    }
    stored = (version.manifest.certificate, version.manifest.parity or None)
    no_model = _no_model(files)
    fresh: tuple[Mapping[str, Any] | str, Mapping[str, Any] | str] = ("", "")
    if no_model is None and stored != (None, None):
        fresh = _compute(files, version.manifest.parity.get("longest"))
    parts = (
        ("certificate", "certificate.json", rules.kind is not None, _certificate),
        ("parity report", "parity.json", rules.max_parity is not None, _parity),
    )
    results = []
    for name, (what, filename, is_asked, judge), said, found in zip(RECOMPUTED, parts, stored, fresh, strict=True):
        if filename in files and _without_metrics(_json(files[filename])) != said:
            ok, detail = False, f"{filename} is not the {what} of the manifest"
        elif said is None:
            ok, detail = True, f"nothing to recompute: no {what} is stored"
        elif no_model is not None:
            ok, detail = not is_asked, f"nothing to recompute: {no_model}"
        elif isinstance(found, str):
            ok, detail = False, found
        else:
            ok, detail = judge(said, found, rules)
        results.append(CheckResult(name, ok, detail))
    return results[0], results[1]


def _no_model(files: Mapping[str, bytes]) -> str | None:
    """Why the files are no model of ours; None if they are."""
    missing = [name for name in MODEL if name not in files]
    if missing:
        return f"the version has no {missing[0]}"
    config = _json(files["config.json"])
    is_ours = isinstance(config, dict) and "stablernn" in config
    return None if is_ours else "config.json was not written by stablernn"


def _without_metrics(document: Any) -> Any:
    """What the manifest repeats of a certificate: all but the matrices of its norms."""
    if isinstance(document, dict) and "contraction_rate" in document:
        return {key: value for key, value in document.items() if key != "metrics"}
    return document


def _json(content: bytes) -> Any:
    try:
        return json.loads(content)
    except ValueError:
        # Equal to no document.
        return math.nan


def _compute(files: Mapping[str, bytes], longest: object) -> tuple[Mapping[str, Any] | str, Mapping[str, Any] | str]:
    """Certificate and parity report, each with the reason in its place where there is none."""
    try:
        from stablernn.errors import CheckpointError, ParityError
        from stablernn.export.reload import recompute, reload
        from stablernn.stability.certificate import certify
        from stablernn_server.runtime.graph_check import check_graph
    except ModuleNotFoundError as error:
        lacks = f"this installation has no '{error.name}', which the computation needs"
        return lacks, lacks
    try:
        for name in GRAPHS:
            check_graph(files[name], name)
        return recompute(files, longest if isinstance(longest, int) else 1)
    except MemoryError:
        raise
    except CheckpointError as error:
        return _detail(error), _detail(error)
    except ParityError as error:
        wrong = _detail(error).removesuffix("; nothing was exported")
    except Exception as error:
        # Whatever a runtime makes of graphs that are not those of these weights.
        wrong = f"the graphs cannot be compared with the weights: {_detail(error)}"
    try:
        return certify(reload(files["config.json"], files["weights.safetensors"])).document(), wrong
    except MemoryError:
        raise
    except Exception as error:
        return f"nothing can be proved of the weights: {_detail(error)}", wrong


def _detail(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".")


def _certificate(stored: Mapping[str, Any], fresh: Mapping[str, Any], rules: PolicyRules) -> tuple[bool, str]:
    del rules
    from stablernn_registry.certificates import WITHDRAWN_KIND

    differences = list(_differences(stored, fresh))
    if differences:
        return False, " and ".join(differences)
    if stored.get("kind") == WITHDRAWN_KIND:
        return True, f"'{fresh['kind']}', stored as the kind '{WITHDRAWN_KIND}', which was withdrawn"
    return True, f"'{fresh['kind']}', as stored"


def _differences(stored: Mapping[str, Any], fresh: Mapping[str, Any]) -> Iterator[str]:
    from stablernn_registry.certificates import WITHDRAWN_KIND

    # The withdrawn kind was stored, with `holds` true, of models that are computed to be none or bounded now. Norm,
    # rate, states and balls never depended on it. Stronger kinds went before it then as now.
    is_withdrawn = (
        stored.get("kind") == WITHDRAWN_KIND and stored.get("holds") is True and fresh["kind"] in ("bounded", "none")
    )
    for key in _COMPARED:
        if is_withdrawn and key in ("kind", "holds"):
            continue
        before, computed = stored.get(key), fresh[key]
        if not _is_same(before, computed):
            yield f"{key} {json.dumps(before)} is stored, {json.dumps(computed)} is computed"
            if key == "kind":
                # Of another kind, the rest differs too.
                return


def _is_same(stored: object, fresh: object) -> bool:
    if isinstance(stored, Mapping) and isinstance(fresh, Mapping):
        return stored.keys() == fresh.keys() and all(_is_same(stored[key], fresh[key]) for key in fresh)
    if isinstance(stored, list) and isinstance(fresh, list):
        return len(stored) == len(fresh) and all(map(_is_same, stored, fresh))
    if isinstance(stored, float) and isinstance(fresh, float):
        return math.isclose(stored, fresh, rel_tol=TOLERANCE)
    return type(stored) is type(fresh) and stored == fresh


def _parity(stored: Mapping[str, Any], fresh: Mapping[str, Any], rules: PolicyRules) -> tuple[bool, str]:
    del stored
    error = fresh["max_rel_error"]
    if rules.max_parity is not None and error > rules.max_parity:
        return False, f"max_rel_error {error:g} is computed, above {rules.max_parity:g}"
    return True, f"max_rel_error {error:g} is computed"
