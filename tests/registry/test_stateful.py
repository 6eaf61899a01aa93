from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from stablernn_registry import AliasError, Registry, UnknownRefError

MEMORY = "/dev/shm"
FIELDS: dict[str, Any] = {"task": "predict-next", "cell": "lipschitz", "signature": {}, "features": ["x"]}
MODELS = st.sampled_from(["a", "b"])
ALIASES = st.sampled_from(["production", "canary"])
FILES = st.dictionaries(st.sampled_from(["x", "y", "d/z"]), st.binary(max_size=3), min_size=1)


class RegistryMachine(RuleBasedStateMachine):
    """Any sequence of writes, compared with plain dictionaries."""

    def __init__(self) -> None:
        super().__init__()
        # Hundreds of synced writes are slow on a disk, so in memory where there is some.
        self.folder = Path(tempfile.mkdtemp(dir=MEMORY if os.access(MEMORY, os.W_OK) else None))
        self.versions: dict[str, list[dict[str, bytes]]] = {}
        self.moves: dict[tuple[str, str], list[int]] = {}
        self.lines: dict[str, int] = {}

    @property
    def registry(self) -> Registry:
        # A new one each time: nothing may live in the object only.
        return Registry(self.folder / "registry")

    @rule(name=MODELS, files=FILES)
    def publish(self, name: str, files: dict[str, bytes]) -> None:
        for index, data in enumerate(files.values()):
            (self.folder / f"{index}").write_bytes(data)
        sources = {filename: self.folder / f"{index}" for index, filename in enumerate(files)}
        version = self.registry.publish(name, sources, FIELDS, who="ada")
        self.versions.setdefault(name, []).append(files)
        self.lines[name] = self.lines.get(name, 0) + 1
        assert version.version == len(self.versions[name])

    @precondition(lambda self: self.versions)
    @rule(name=MODELS, alias=ALIASES, pick=st.integers(0, 3))
    def set_alias(self, name: str, alias: str, pick: int) -> None:
        highest = len(self.versions.get(name, ()))
        if not 0 < pick <= highest:
            with pytest.raises((UnknownRefError, ValueError)):
                self.registry.set_alias(name, alias, pick)
            return
        self.registry.set_alias(name, alias, pick, who="ada")
        self.lines[name] += 1
        stack = self.moves.setdefault((name, alias), [])
        if not stack or stack[-1] != pick:
            stack.append(pick)

    @precondition(lambda self: self.moves)
    @rule(name=MODELS, alias=ALIASES)
    def rollback(self, name: str, alias: str) -> None:
        stack = self.moves.get((name, alias), [])
        if len(stack) < 2:
            with pytest.raises((UnknownRefError, AliasError)):
                self.registry.rollback(name, alias)
            return
        self.registry.rollback(name, alias, who="ada")
        self.lines[name] += 1
        stack.pop()

    @invariant()
    def lists_what_was_done(self) -> None:
        assert {model.name: (model.versions, model.aliases) for model in self.registry.list()} == {
            name: (
                tuple(range(1, len(versions) + 1)),
                {alias: stack[-1] for (owner, alias), stack in self.moves.items() if owner == name},
            )
            for name, versions in self.versions.items()
        }

    def teardown(self) -> None:
        report = self.registry.verify()
        assert (report.problems, report.notes) == ((), ())
        for name, versions in self.versions.items():
            assert len(self.registry.log(name)) == self.lines[name]
            for number, files in enumerate(versions, start=1):
                version = self.registry.get(f"{name}:{number}")
                assert {filename: version.read(filename) for filename in version.manifest.files} == files
        for (name, alias), stack in self.moves.items():
            assert self.registry.get(f"{name}@{alias}").version == stack[-1]
        shutil.rmtree(self.folder)


TestRegistry = RegistryMachine.TestCase
TestRegistry.settings = settings(max_examples=10, stateful_step_count=12, deadline=None)
