"""Checks that a version must pass before the command line points an alias at it, besides the registry's policy.

It must have a score on data that it was not fitted on, better than that of the trivial answer. Its bytes must be those
that were published, the certificate and the parity report in its manifest must come out again when they are computed
from its files, and its graphs must match its signature. The registry stores JSON and the server opens graphs; only here
are both compared with the weights. The files are not trusted before they have passed, so they are read in a process of
its own, which is this module, with a deadline and a limit on memory.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from stablernn_registry import Check, CheckResult, PolicyRules, Registry, Version
    from stablernn_runtime.isolation import IsolatedProcess

SECONDS = "STABLERNN_CHECK_TIMEOUT_SECONDS"
MEMORY = "STABLERNN_CHECK_MEMORY_BYTES"


GRAPHS = ("step.onnx", "sequence.onnx")
MODEL = ("config.json", "weights.safetensors")
"""Files from which certificate and parity are computed, besides the graphs."""
TOLERANCE = 1e-4
"""Allowed relative difference of a certificate's figures between machines: rates are the result of a search."""
SAMPLE_TOLERANCE = 0.05
"""The same of what is stated of raw samples, where a rate close to 1 makes much of a small difference."""
RECOMPUTED = ("certificate recomputed", "parity recomputed")
"""Names of the checks that compute."""
SIGNATURE = "signature of the graphs"
"""Name of the check that opens the graphs."""
Kind = Literal["recomputed", "signature"]
CHECKS: dict[Kind, tuple[str, ...]] = {"recomputed": RECOMPUTED, "signature": (SIGNATURE,)}
"""Names of the results by the kind of the checks; all fail if their process exceeds its limits."""
_COMPARED_IN_RANGE = ("kind", "holds", "norm", "contraction_rate", "states", "state_balls")
_COMPARED = (*_COMPARED_IN_RANGE, "state_ball")


def promotion_checks(registry: Registry, alias: str) -> list[Check]:
    """Return the checks of every move of an alias; the first to need certificate or parity computes both."""
    from stablernn_registry import CheckResult, IntegrityError, check_score

    results: dict[tuple[str, str, str], list[CheckResult]] = {}

    def run(kind: Kind, candidate: Version) -> list[CheckResult]:
        # Read the rules each time: if the policy has changed in between, the registry runs the checks again.
        rules = registry.policy().rules(alias)
        key = kind, candidate.digest, rules.model_dump_json()
        if key not in results:
            try:
                results[key] = run_checks(kind, registry, candidate, rules)
            except IntegrityError:
                results[key] = [CheckResult(name, False, "its files are damaged") for name in CHECKS[kind]]
        return results[key]

    # The registry also passes the version that the alias points to now, which no check of the files needs.
    return [
        check_score,
        files_intact,
        lambda candidate, current: run("recomputed", candidate)[0],
        lambda candidate, current: run("recomputed", candidate)[1],
        lambda candidate, current: run("signature", candidate)[0],
    ]


def files_intact(candidate: Version, current: Version | None) -> CheckResult:
    """Check that every byte of the version is the one that was published."""
    from stablernn_registry import CheckResult, IntegrityError

    try:
        for filename in candidate.manifest.files:
            candidate.check(filename)
    except IntegrityError as error:
        return CheckResult("files intact", ok=False, detail=str(error).rstrip("."))
    return CheckResult("files intact", ok=True, detail=f"{len(candidate.manifest.files)} files")


def run_checks(kind: Kind, registry: Registry, version: Version, rules: PolicyRules | None = None) -> list[CheckResult]:
    """Return the results of one kind of checks, computed in another process.

    Args:
        kind: ``recomputed``: certificate and parity are computed again; ``signature``: the graphs have the inputs,
            outputs, states and labels of the manifest.
        registry: The registry that holds the version.
        version: Any version.
        rules: Rules of the policy that apply to the version; None for none.

    Raises:
        stablernn_registry.IntegrityError: If a file is damaged.
        stablernn_registry.StorageError: If a file cannot be read.
        stablernn.errors.ConfigError: If a bound in the environment is not a number above 0.
    """
    from stablernn.environment_variables import read_positive_number
    from stablernn_registry import CheckResult, IntegrityError, StorageError
    from stablernn_runtime.isolation import IsolationError

    seconds = read_positive_number(SECONDS, 600)
    memory = read_positive_number(MEMORY, 8 * 2.0**30)
    request = {
        "what": kind,
        "root": str(registry.root),
        "ref": version.ref,
        "digest": version.digest,
        "rules": rules.model_dump(mode="json") if rules is not None else None,
    }
    try:
        answer = _process().ask(request, seconds, int(memory))
    except IsolationError as error:
        return [CheckResult(name, False, str(error)) for name in CHECKS[kind]]
    # Errors of the registry come back by the name of their class.
    for error_class in (IntegrityError, StorageError):
        if error_class.__name__ in answer:
            raise error_class(str(answer[error_class.__name__]))
    return [CheckResult(result["name"], result["ok"], result["detail"]) for result in answer["results"]]


# It uses a process again that has no work, with the modules that this has imported.
@functools.cache
def _process() -> IsolatedProcess:
    from stablernn_runtime.isolation import IsolatedProcess

    return IsolatedProcess(__spec__.name)


def check_graphs(version: Version, rules: PolicyRules | None = None) -> CheckResult:
    """Check that the graphs have the inputs, outputs, states and labels that the manifest states, as a server does.

    A version without graphs passes unless a rule of the policy requires the signature.

    Args:
        version: Any version.
        rules: Rules of the policy that apply to the version; None for none.

    Raises:
        stablernn_registry.IntegrityError: If a graph is damaged.
    """
    from stablernn_registry import CheckResult, Signature

    stated = Signature.model_validate(version.manifest.signature)
    graphs = _graphs(version)
    missing = [name for name in graphs if name not in version.manifest.files]
    if missing or stated.sequence is None or (stated.step is None and stated.resample_steps is None):
        # Versions of other programs may have no graphs; the registry stores any files.
        why = f"the version has no {missing[0]}" if missing else "the manifest has no signature of both graphs"
        return CheckResult(SIGNATURE, not (rules and rules.model_signature), f"nothing to check: {why}")
    for name in version.manifest.files:
        if name in (*graphs, "calibration.json"):
            # Raises IntegrityError here, which ServedModel.load would report as a model that cannot be served.
            version.read(name)
    from stablernn_runtime import ServedModel
    from stablernn_server import ModelLoadError

    try:
        model = ServedModel.load(version, "cpu")
    except ModelLoadError as error:
        return CheckResult(SIGNATURE, False, _detail(error).removeprefix(f"'{version.ref}' cannot be served: "))
    states = {name for state in model.states for name in (state.input, state.output)}
    inputs, outputs = (
        ", ".join(name for name in side if name not in states)
        for side in (model.sequence.inputs, model.sequence.outputs)
    )
    return CheckResult(SIGNATURE, True, f"inputs {inputs}, outputs {outputs}, {len(model.states)} states, as stated")


def _graphs(version: Version) -> tuple[str, ...]:
    """Return the files of the graphs of a version: one of complete sequences has no step."""
    return GRAPHS[1:] if version.manifest.signature.get("resample_steps") is not None else GRAPHS


def recompute_both(version: Version, rules: PolicyRules | None = None) -> tuple[CheckResult, CheckResult]:
    """Compute certificate and parity of a version again, and return a result for each.

    A version that states neither, or whose files were not written by stablernn, passes unless a rule of the policy
    requires them.

    Args:
        version: Any version.
        rules: Rules of the policy that apply to the version; None for none.

    Raises:
        stablernn_registry.IntegrityError: If a file is damaged.
    """
    from stablernn_registry import CheckResult, PolicyRules

    rules = rules or PolicyRules()
    files = {
        name: version.read(name)
        for name in (*MODEL, *GRAPHS, "certificate.json", "parity.json")
        if name in version.manifest.files
    }
    stored = (version.manifest.certificate, version.manifest.parity or None)
    graphs = _graphs(version)
    why_not_ours = _why_not_ours(files, graphs)
    fresh: tuple[Mapping[str, Any] | str, Mapping[str, Any] | str] = ("", "")
    if why_not_ours is None and stored != (None, None):
        fresh = _compute(files, graphs, version.manifest.parity.get("longest"))
    parts = (
        ("certificate", "certificate.json", rules.kind is not None, _certificate),
        ("parity report", "parity.json", rules.max_parity is not None, _parity),
    )
    results = []
    for name, (noun, filename, is_required, judge), stated, computed in zip(
        RECOMPUTED, parts, stored, fresh, strict=True
    ):
        if filename in files and _without_metrics(_json(files[filename])) != stated:
            ok, detail = False, f"{filename} is not the {noun} of the manifest"
        elif stated is None:
            ok, detail = True, f"nothing to recompute: no {noun} is stored"
        elif why_not_ours is not None:
            ok, detail = not is_required, f"nothing to recompute: {why_not_ours}"
        elif isinstance(computed, str):
            ok, detail = False, computed
        else:
            ok, detail = judge(stated, computed, rules)
        results.append(CheckResult(name, ok, detail))
    return results[0], results[1]


def _why_not_ours(files: Mapping[str, bytes], graphs: Sequence[str]) -> str | None:
    """Return why the files are not a model that stablernn wrote, or None if they are."""
    missing = [name for name in (*MODEL, *graphs) if name not in files]
    if missing:
        return f"the version has no {missing[0]}"
    config = _json(files["config.json"])
    is_ours = isinstance(config, dict) and "stablernn" in config
    return None if is_ours else "config.json was not written by stablernn"


def _without_metrics(document: Any) -> Any:
    """Return a certificate as the manifest holds it, without the matrices of its norms."""
    if isinstance(document, dict) and "contraction_rate" in document:
        return {key: value for key, value in document.items() if key != "metrics"}
    return document


def _json(content: bytes) -> Any:
    try:
        return json.loads(content)
    except ValueError:
        # NaN equals nothing, so a damaged document never matches the manifest.
        return math.nan


def _compute(
    files: Mapping[str, bytes], graphs: Sequence[str], longest: object
) -> tuple[Mapping[str, Any] | str, Mapping[str, Any] | str]:
    """Return the certificate and the parity report, or in place of each the reason why it cannot be computed."""
    try:
        from stablernn.errors import CheckpointError, ParityError
        from stablernn.export.load_exported import recompute, recompute_certificate
        from stablernn_runtime.graph_safety import check_graph
    except ModuleNotFoundError as error:
        lacks = f"this installation has no '{error.name}', which the computation needs"
        return lacks, lacks
    try:
        for name in graphs:
            check_graph(files[name], name)
        return recompute(files, longest if isinstance(longest, int) else 1)
    except MemoryError:
        raise
    except CheckpointError as error:
        return _detail(error), _detail(error)
    except ParityError as error:
        wrong = _detail(error).removesuffix("; nothing was exported")
    except Exception as error:
        # Any error may come from running graphs that do not belong to the weights.
        wrong = f"the graphs cannot be compared with the weights: {_detail(error)}"
    try:
        return recompute_certificate(files), wrong
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
    for key, before, computed in _compared(stored, fresh):
        if is_withdrawn and key in ("kind", "holds"):
            continue
        if not _is_same(before, computed):
            yield f"{key} {json.dumps(before)} is stored, {json.dumps(computed)} is computed"
            if key == "kind":
                # The other figures of another kind differ anyway.
                return
    # Certificates from before these keys claim nothing of raw samples.
    if not {"wrong_sample", "in_words"}.isdisjoint(stored):
        yield from _sample_differences(stored, fresh)


def _sample_differences(stored: Mapping[str, Any], fresh: Mapping[str, Any]) -> Iterator[str]:
    """Yield what a certificate states otherwise of raw samples: figures, or words that are not those of its figures."""
    from stablernn.certificates.plain_words import describe_guarantee
    from stablernn.certificates.stored_certificate import series_facts

    bounds, computed = stored.get("wrong_sample"), fresh["wrong_sample"]
    if not isinstance(bounds, Mapping) or not _is_same(bounds, computed, SAMPLE_TOLERANCE):
        yield f"wrong_sample {json.dumps(bounds)} is stored, {json.dumps(computed)} is computed"
        return
    words = describe_guarantee(bounds, **series_facts(bounds))
    if stored.get("in_words") != words:
        yield f"in_words {json.dumps(stored.get('in_words'))} is stored, {json.dumps(words)} is what wrong_sample means"


def _compared(stored: Mapping[str, Any], fresh: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yield key, stored and computed value of what must agree, also in the certificate for bounded inputs."""
    for key in _COMPARED:
        yield key, stored.get(key), fresh[key]
    # Certificates of schema 1 have no such part, and none is computed then.
    before, computed = stored.get("bounded_inputs"), fresh["bounded_inputs"]
    if isinstance(before, Mapping) and isinstance(computed, Mapping):
        for key in ("inputs", *_COMPARED_IN_RANGE):
            yield f"bounded_inputs.{key}", before.get(key), computed[key]
    else:
        yield "bounded_inputs", before, computed


def _is_same(stored: object, fresh: object, tolerance: float = TOLERANCE) -> bool:
    if isinstance(stored, Mapping) and isinstance(fresh, Mapping):
        return stored.keys() == fresh.keys() and all(_is_same(stored[key], fresh[key], tolerance) for key in fresh)
    if isinstance(stored, list) and isinstance(fresh, list):
        return len(stored) == len(fresh) and all(map(partial(_is_same, tolerance=tolerance), stored, fresh))
    # Times are whole numbers, which a small change of a rate moves.
    numbers = (float,) if tolerance == TOLERANCE else (float, int)
    if type(stored) in numbers and type(fresh) in numbers:
        return math.isclose(stored, fresh, rel_tol=tolerance)  # type: ignore[arg-type]
    return type(stored) is type(fresh) and stored == fresh


def _parity(stored: Mapping[str, Any], fresh: Mapping[str, Any], rules: PolicyRules) -> tuple[bool, str]:
    del stored
    error = fresh["max_rel_error"]
    if rules.max_parity is not None and error > rules.max_parity:
        return False, f"max_rel_error {error:g} is computed, above {rules.max_parity:g}"
    return True, f"max_rel_error {error:g} is computed"


def _judge(request: dict[str, Any]) -> dict[str, Any]:
    from stablernn_registry import IntegrityError, PolicyRules, StorageError

    version = _version(request)
    rules = PolicyRules.parse(request["rules"]) if request["rules"] is not None else None
    only_signature = request["what"] == "signature"
    try:
        results = (check_graphs(version, rules),) if only_signature else recompute_both(version, rules)
    except IntegrityError as error:
        # The parent looks for the base classes, and a subclass may be raised.
        return {IntegrityError.__name__: str(error)}
    except StorageError as error:
        return {StorageError.__name__: str(error)}
    return {"results": [{"name": result.name, "ok": result.ok, "detail": result.detail} for result in results]}


def _prepare(request: dict[str, Any]) -> None:
    """Import what the work needs, so that its address space does not count as memory of the version."""
    files = _version(request).manifest.files
    try:
        import stablernn_runtime.served_model  # noqa: F401

        if request["what"] == "recomputed" and {"config.json", "weights.safetensors"} <= files.keys():
            import stablernn.export.load_exported  # noqa: F401
    except ModuleNotFoundError:
        # The check itself reports what is missing.
        pass


def _version(request: dict[str, Any]) -> Version:
    from stablernn_registry import Registry

    version = Registry(request["root"]).get(request["ref"])
    if version.digest != request["digest"]:
        raise ValueError(f"'{version.ref}' is another version now")
    return version


if __name__ == "__main__":
    from stablernn_runtime.isolation import answer_requests

    answer_requests(_judge, _prepare)
