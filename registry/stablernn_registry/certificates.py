"""Stability certificates as the registry keeps them: which is stronger, and what they say in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

Kind = Literal["contracting", "non-expansive", "bounded", "local", "none"]
KINDS: tuple[Kind, ...] = ("contracting", "non-expansive", "bounded", "local", "none")
"""From the strongest to the weakest."""

_MEANT: dict[object, str] = {
    "contracting": "two states under one input approach, {when}by the factor {rate} {time} or faster",
    "non-expansive": "no step drives two states under one input apart",
    "bounded": "no input drives the state out of a known ball; two states under one input may part",
    "local": "the criterion of its paper holds, which says nothing of two states far apart",
    "none": "no rate, and no bound of all its states, is proved",
}


def is_as_strong(kind: Kind, required: Kind) -> bool:
    """Whether a kind is the required one or a stronger one."""
    return KINDS.index(kind) <= KINDS.index(required)


def in_words(certificate: Mapping[str, object] | None) -> str:
    """A certificate in a sentence, without the full stop."""
    if certificate is None:
        return "none was computed"
    kind, rate = certificate.get("kind"), certificate.get("contraction_rate")
    shown = f"{rate:.6g}" if isinstance(rate, float | int) else "-"
    # Of several layers a single step does not always bring states nearer.
    when = "" if certificate.get("step_rate") == rate or _is_irregular(certificate) else "in the end "
    time = "over the time of a regular step" if _is_irregular(certificate) else "a step"
    meant = _MEANT.get(kind, "a kind that this version does not know")
    return f"{kind}: {meant.format(rate=shown, when=when, time=time)}"


def _is_irregular(certificate: Mapping[str, object]) -> bool:
    time = certificate.get("time")
    return isinstance(time, Mapping) and time.get("steps") == "irregular"
