"""Stability certificates as the registry keeps them: which is stronger, and what they say in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

Kind = Literal["contracting", "non-expansive", "bounded", "local", "none"]
KINDS: tuple[Kind, ...] = ("contracting", "non-expansive", "bounded", "local", "none")
"""From the strongest to the weakest."""

_MEANT: dict[object, str] = {
    "contracting": "two states under one input approach, in the end by the factor {rate} a step or faster",
    "non-expansive": "no step drives two states under one input apart",
    "bounded": "no input drives the state out of a known ball; two states under one input may part",
    "local": "the criterion of its paper holds, which says nothing of two states far apart",
    "none": "nothing is proved of the state",
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
    return f"{kind}: {_MEANT.get(kind, 'a kind that this version does not know').format(rate=shown)}"
