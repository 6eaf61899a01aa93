"""Counts of a running server in the certificate document."""

from __future__ import annotations

from pathlib import Path

import httpx
import numpy as np
import pytest

from certificate_page import read_document
from cli_helpers import ALIKE, Workplace, copied
from server_helpers import json_tensor, serve
from stablernn_registry import Registry
from stablernn_server import Settings, create_app

TOKEN = "infer-token-0123456789abcdef0123456789"


class TestServer:
    def test_violations_are_counted_and_their_scope_is_stated(self, released: Workplace) -> None:
        settings = Settings(registry=released.registry, models=("sure:1",))
        for running in serve(create_app(settings)):
            before = read_document(released, "sure:1", running.url)[1]["violations"]
            # Two of three samples lie outside the range of training and a half more, -4 to 20.
            inputs = json_tensor("x", np.array([[[0.0], [25.0], [-9.0]]], dtype=np.float32))
            answer = httpx.post(f"{running.url}/v2/models/sure/infer", json={"inputs": [inputs]})
            assert answer.status_code == 200
            page, document = read_document(released, "sure:1", running.url)
        after = document["violations"]
        assert (before["samples_outside_range"], after["samples_outside_range"]) == (0, 2)
        assert after["sequences_and_steps_run"] == before["sequences_and_steps_run"] + 1
        assert after["url"] == running.url
        assert "samples outside the range 2" in page.text
        assert after["states_outside_ball"] == 0
        assert "counted in operation 0 states outside their ball, 2 samples outside the range (section C)" in page.text
        assert "One server process, since it opened this version." in page.text

    @pytest.mark.slow
    def test_what_no_guard_compares_is_no_zero(self, empty: Workplace) -> None:
        # A linear unit has no bound on its state.
        empty.ok(f"-q train --cell lru {ALIKE} --run-dir lru")
        empty.ok("-q export lru --name open")
        for running in serve(create_app(Settings(registry=empty.registry, models=("open:1",)))):
            page, document = read_document(empty, "open:1", running.url)
        assert document["violations"]["states_outside_ball"] is None
        assert "not counted: the version has no certified ball" in page.text

    def test_a_token_is_read_from_the_environment(self, released: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
        settings = Settings(registry=released.registry, models=("sure:1",), infer_tokens=(TOKEN,))
        for running in serve(create_app(settings)):
            refused = released(f"certify sure:1 --report d.json --server {running.url}")
            monkeypatch.setenv("STABLERNN_CLIENT_TOKEN", TOKEN)
            released.ok(f"-q certify sure:1 --report d.json --server {running.url}")
        assert refused.code == 1
        assert "Start the server, set STABLERNN_CLIENT_TOKEN if it wants a token" in refused.sentence
        assert TOKEN not in released.path("d.json").read_text(encoding="utf-8")

    @pytest.mark.parametrize(
        "address",
        ["http://user:secret@127.0.0.1:9", "user:secret@127.0.0.1:9", "http://u:secret@[::1", "http://u:secret@h:port"],
    )
    def test_a_password_in_an_address_is_neither_taken_nor_shown(self, address: str, released: Workplace) -> None:
        refused = released("certify sure:1 --report d.json --server", address)
        assert (refused.code, refused.sentence) == (
            2,
            "--server takes an address without user and password. Give an address such as http://127.0.0.1:8080, and "
            "STABLERNN_CLIENT_TOKEN.",
        )
        assert "secret" not in refused.err

    @pytest.mark.parametrize(
        "address", ["127.0.0.1:9", "ftp://h", "http://", "http://h:port", "http://[::1", "http://h x"]
    )
    def test_what_is_no_address_is_refused(self, address: str, released: Workplace) -> None:
        assert released.refusal("certify sure:1 --report d.json --server", address).startswith(
            f"--server takes an http:// or https:// address, got '{address}'."
        )

    def test_a_server_of_another_model_is_refused(self, released: Workplace, tmp_path: Path) -> None:
        with copied(released, tmp_path / "copy") as workplace:
            registry = Registry(tmp_path / "other")
            source = Registry(workplace.registry).get("load:1")
            fields = source.manifest.model_dump(exclude={"schema_number", "name", "version", "created", "files"})
            registry.publish("sure", {name: source.path(name) for name in source.manifest.files}, fields)
            for running in serve(create_app(Settings(registry=registry.root, models=("sure:1",)))):
                refused = workplace(f"certify sure:1 --report d.html --server {running.url}")
        assert refused.code == 1
        assert f"The server at {running.url} serves another model as 'sure:1'" in refused.sentence

    def test_a_server_that_does_not_answer_is_an_error(self, released: Workplace) -> None:
        sentence = released.refusal("certify sure:1 --report d.html --server http://127.0.0.1:9", code=1)
        assert sentence.startswith("The counts of 'sure:1' cannot be read from http://127.0.0.1:9: ")
        assert not released.path("d.html").exists()
