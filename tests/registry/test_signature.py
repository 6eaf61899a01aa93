"""Signatures that do not match their states are refused when they are published."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import pytest

from stablernn_registry import ManifestError, Registry, Signature, Version

Publish = Callable[..., Version]
Change = Callable[[dict[str, Any]], Any]


def _twice(signature: dict[str, Any]) -> None:
    signature["step"]["inputs"].append(signature["step"]["inputs"][1])


ROWS: dict[str, tuple[Change, str]] = {
    "shape is null": (
        lambda s: s["step"]["inputs"][0].update(shape=None),
        "field 'step.inputs.0.shape': input should be a valid list, got None",
    ),
    "an unknown output": (
        lambda s: s["states"][0].update(output="zz"),
        "the state 'state_0' names the output 'zz', which step does not have",
    ),
    "another shape": (
        lambda s: s["states"][0].update(shape=["batch", 5]),
        "the state 'state_0' is float32 ['batch', 5], the input 'state_0' of step is float32 ['batch', 4]",
    ),
    "an input twice": (_twice, "field 'step': the input 'state_0' is there twice"),
    "a state twice": (lambda s: s["states"].append(s["states"][0]), "the state 'state_0' is there twice"),
    "no outputs": (
        lambda s: s["step"].update(outputs=[]),
        "field 'step.outputs': list should have at least 1 item after validation, not 0, got []",
    ),
}


@pytest.mark.parametrize("row", ROWS)
def test_a_signature_that_does_not_fit(registry: Registry, publish: Publish, fields: dict[str, Any], row: str) -> None:
    change, sentence = ROWS[row]
    signature = copy.deepcopy(fields["signature"])
    change(signature)
    with pytest.raises(ManifestError, match=re.escape(sentence)):
        publish(signature=signature)
    assert not registry.root.exists()


def test_a_signature_is_stored_as_it_was_given(publish: Publish, fields: dict[str, Any]) -> None:
    version = publish()
    assert version.manifest.signature == fields["signature"]
    assert Signature.model_validate(version.manifest.signature).states[0].role == "hidden"
