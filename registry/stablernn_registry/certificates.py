"""Stability certificates as the registry keeps them: which is stronger, and what they say in words.

Versions and policies that were written before the kind ``local`` was withdrawn still name it. In a certificate it
counts as ``none`` and in a policy as ``bounded``; what is stored stays as it is, and so do the hashes over it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

Kind = Literal["contracting", "non-expansive", "bounded", "none"]
KINDS: tuple[Kind, ...] = ("contracting", "non-expansive", "bounded", "none")
"""From the strongest to the weakest."""
WITHDRAWN_KIND = "local"
"""Was decided by the differential equation or by single Jacobians, neither of which bounds the step that a model takes;
it stood between ``bounded`` and ``none``."""
REQUIRED_INSTEAD: Kind = "bounded"
"""What a rule that names the withdrawn kind asks for: the weakest kind that is proved."""
WITHDRAWN_SENTENCE = (
    f"The kind '{WITHDRAWN_KIND}' was withdrawn and now means '{REQUIRED_INSTEAD}' (docs/stability.md)."
)

_MEANT: dict[object, str] = {
    "contracting": "two states under one input approach, {when}by the factor {rate} {time} or faster",
    "non-expansive": "no step drives two states under one input apart",
    "bounded": "no input drives the state out of a known ball; two states under one input may part",
    "none": "no rate, and no bound of all its states, is proved",
}


def is_as_strong(kind: Kind, required: Kind) -> bool:
    """Whether a kind is the required one or a stronger one."""
    return KINDS.index(kind) <= KINDS.index(required)


def current_certificate(certificate: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return a stored certificate as it counts today.

    A certificate of the withdrawn kind gets the kind ``none``, ``holds`` false and ``stored_kind``, the kind that is in
    the manifest; every other one is returned as it is stored.
    """
    if certificate is None:
        return None
    if certificate.get("kind") != WITHDRAWN_KIND:
        return dict(certificate)
    return {**certificate, "kind": "none", "holds": False, "stored_kind": WITHDRAWN_KIND}


def format_kind(certificate: Mapping[str, object]) -> str:
    """Return the kind of a certificate as people read it, such as ``none (stored as local; withdrawn)``."""
    current = current_certificate(certificate) or {}
    if (current.get("kind"), current.get("stored_kind")) == ("none", WITHDRAWN_KIND):
        return f"none (stored as {WITHDRAWN_KIND}; withdrawn)"
    return str(current.get("kind"))


def describe_certificate(certificate: Mapping[str, object] | None) -> str:
    """A certificate in a sentence, without the full stop."""
    certificate = current_certificate(certificate)
    if certificate is None:
        return "none was computed"
    kind, rate = certificate.get("kind"), certificate.get("contraction_rate")
    shown = f"{rate:.6g}" if isinstance(rate, float | int) else "-"
    # Of several layers a single step does not always bring states nearer.
    when = "" if certificate.get("step_rate") == rate or _is_irregular(certificate) else "in the end "
    time = "over the time of a regular step" if _is_irregular(certificate) else "a step"
    meant = _MEANT.get(kind, "a kind that this version does not know")
    return f"{format_kind(certificate)}: {meant.format(rate=shown, when=when, time=time)}"


def _is_irregular(certificate: Mapping[str, object]) -> bool:
    time = certificate.get("time")
    return isinstance(time, Mapping) and time.get("steps") == "irregular"
