"""`dockerize`: the folder is complete, says what it should, serves the same versions, and spoils nothing."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli_helpers import Workplace
from packages import PACKAGES, ROOT
from stablernn_cli.commands import dockerize
from stablernn_cli.commands.dockerize import HEALTHCHECK, USER
from stablernn_registry import Registry
from stablernn_server import Settings
from stablernn_server.auth import Auth
from stablernn_server.key_files import create_state_tokens


def instructions(dockerfile: str) -> list[tuple[str, str]]:
    """Instructions with their arguments, lines joined as the builder does."""
    lines = [line for line in dockerfile.splitlines() if line and not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(line.partition(" ")[0], line.partition(" ")[2]) for line in joined.splitlines()]


def of(kind: str, parsed: list[tuple[str, str]]) -> list[str]:
    return [rest for word, rest in parsed if word == kind]


@pytest.fixture(autouse=True, scope="module")
def _wheels_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Each wheel is built once: nothing of this checkout changes between two commands."""
    build, folder, wheels = dockerize._build, tmp_path_factory.mktemp("wheels"), dict[Path, Path]()

    def build_once(project: Path, target: Path) -> Path:
        if project not in wheels:
            wheels[project] = build(project, folder / target.name)
        return Path(shutil.copy(wheels[project], target.parent))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dockerize, "_build", build_once)
        yield


@pytest.fixture(scope="module")
def made(trained: Workplace, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, Any]]]:
    """A context of ``digits@production``, which is version 1 of 2, and ``load``, made under the strictest umask."""
    copy = tmp_path_factory.mktemp("made") / "work"
    shutil.copytree(trained.folder, copy)
    workplace = Workplace(copy)
    workplace.ok("-q registry alias digits@production 1")
    registry = Registry(workplace.registry)
    fields = registry.get("digits:1").manifest.model_dump(
        exclude={"schema_number", "name", "version", "created", "files"}
    )
    (copy / "other.txt").write_text("not for the image")
    registry.publish("digits", {"other.txt": copy / "other.txt"}, fields)
    before = os.umask(0o077)
    try:
        result = workplace.ok("-q dockerize digits@production load --compose --json")
    finally:
        os.umask(before)
    yield copy / "stablernn-image", result.json
    for path in copy.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)


@pytest.fixture
def parsed(made: tuple[Path, dict[str, Any]]) -> list[tuple[str, str]]:
    return instructions((made[0] / "Dockerfile").read_text())


def test_everything_that_is_copied_is_there_and_sent_to_the_builder(
    made: tuple[Path, dict[str, Any]], parsed: list[tuple[str, str]]
) -> None:
    folder, document = made
    sources = [word for rest in of("COPY", parsed) if not rest.startswith("--from") for word in rest.split()[:-1]]
    assert len(sources) == 2 + len(document["wheels"])
    lines = (folder / ".dockerignore").read_text().splitlines()
    # The last pattern that matches decides; these are no more than "everything" and whole names.
    assert lines[1] == "*"
    assert {line.removeprefix("!") for line in lines[2:]} == set(sources)
    assert all((folder / source).exists() for source in sources)


def test_the_image_runs_without_rights_and_installs_nothing_of_its_own(parsed: list[tuple[str, str]]) -> None:
    last = max(index for index, (word, _) in enumerate(parsed) if word == "FROM")
    builder, final = parsed[:last], parsed[last:]
    assert {word for word, _ in parsed} == {
        *("ARG", "FROM", "WORKDIR", "COPY", "RUN", "LABEL", "ENV", "USER", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK"),
        *("ENTRYPOINT", "CMD"),
    }
    assert of("FROM", parsed) == ["${BASE} AS builder", "${BASE}"]
    assert of("RUN", final) == []
    assert "--without-pip" in of("RUN", builder)[0]
    assert not re.search(r"\b(gcc|make|apt-get|torch)\b", of("RUN", builder)[0])
    assert of("USER", final) == [f"{USER}:{USER}"]
    words = [word for word, _ in final]
    assert words.index("USER") > max(index for index, word in enumerate(words) if word == "COPY")


def test_the_process_of_the_image_gets_the_signal_itself(parsed: list[tuple[str, str]]) -> None:
    """By the exec form: a shell in between would not pass it on."""
    assert [json.loads(text) for text in of("ENTRYPOINT", parsed) + of("CMD", parsed)] == [["stablernn"], ["serve"]]
    assert of("STOPSIGNAL", parsed) == ["SIGTERM"]
    health = of("HEALTHCHECK", parsed)[0].partition("CMD ")[2]
    assert json.loads(health) == list(HEALTHCHECK)


def test_the_environment_of_the_image_is_one_that_the_server_takes(
    made: tuple[Path, dict[str, Any]], parsed: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    values = dict(word.split("=", 1) for word in shlex.split(of("ENV", parsed)[0]))
    for name, value in values.items():
        if name.startswith("STABLERNN_"):
            monkeypatch.setenv(name, value)
    settings = Settings()
    assert (settings.host, settings.port, str(settings.registry)) == ("0.0.0.0", 8080, "/registry")
    assert settings.models == ("digits@production", "load:1")
    assert values["ORT_DISABLE_TELEMETRY"] == "1"


def test_the_requirements_are_pinned_and_without_torch(made: tuple[Path, dict[str, Any]]) -> None:
    text = (made[0] / "requirements.txt").read_text()
    assert text == (ROOT / "requirements" / "serve-cpu.txt").read_text()
    pins = [line.partition("==")[0] for line in text.splitlines() if not line.startswith(("#", " "))]
    assert "onnxruntime" in pins
    assert "torch" not in pins
    assert "--require-hashes \\\n    --requirement requirements.txt" in (made[0] / "Dockerfile").read_text()


def test_everybody_can_read_what_the_image_copies(made: tuple[Path, dict[str, Any]]) -> None:
    folder, document = made
    for path in (folder / "registry", *(folder / "registry").rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o755 if path.is_dir() else 0o444), path
    for name in ("requirements.txt", *document["wheels"], "Dockerfile"):
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o644, name


@pytest.mark.slow
def test_the_wheels_are_this_stablernn(made: tuple[Path, dict[str, Any]]) -> None:
    folder, document = made
    contents = {}
    for wheel in document["wheels"]:
        with zipfile.ZipFile(folder / wheel) as archive:
            contents |= {name: archive.read(name) for name in archive.namelist()}
    packages = {name.partition("/")[0] for name in contents if ".dist-info/" not in name}
    assert packages == PACKAGES.keys() - {"stablernn_papers"}
    own = "stablernn_cli/commands/dockerize.py"
    assert contents[own] == (ROOT / "cli" / own).read_bytes()
    # An image tells nobody where its checkout was.
    assert not [name for name, content in contents.items() if b"file://" in content and name.endswith("/METADATA")]


def test_the_secrets_are_good_ones_and_for_their_owner_alone(made: tuple[Path, dict[str, Any]]) -> None:
    folder, document = made
    tokens, key = Path(document["tokens_file"]), Path(document["state_key_file"])
    assert [path.parent for path in (tokens, key)] == [folder / "secrets"] * 2
    for path in (tokens, key):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    settings = Settings(tokens_file=tokens, state_key_file=key, host="0.0.0.0")
    auth = Auth.from_settings(settings)
    auth.check_address("0.0.0.0", settings)
    assert [identity.name for _, identity in auth.digests] == ["infer-1", "admin-1"]
    assert len(create_state_tokens(settings).key) == 32
    sent = [path for path in folder.rglob("*") if path.is_file() and "secrets" not in path.parts]
    for secret in (word for path in (tokens, key) for word in path.read_text().split() if len(word) > 16):
        assert not any(secret.encode() in path.read_bytes() for path in sent)


def test_the_compose_file_of_the_checkout_is_the_same_but_for_where_things_are(
    made: tuple[Path, dict[str, Any]],
) -> None:
    ours = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]["server"]
    written = yaml.safe_load((made[0] / "compose.yaml").read_text())["services"]["server"]
    for service in (ours, written):
        for name in ("image", "user", "volumes"):
            service.pop(name, None)
    assert ours["environment"].pop("STABLERNN_MODELS") == "${STABLERNN_MODELS:-}"
    assert ours == written


@pytest.mark.slow
def test_for_a_gpu(trained: Workplace, tmp_path: Path) -> None:
    document = trained.document(f"dockerize load --output {tmp_path / 'x'} --gpu --compose")
    assert document["gpu"] is True
    assert "onnxruntime-gpu==" in (tmp_path / "x" / "requirements.txt").read_text()
    environment = of("ENV", instructions((tmp_path / "x" / "Dockerfile").read_text()))[0]
    assert "NVIDIA_VISIBLE_DEVICES=all" in shlex.split(environment)
    service = yaml.safe_load((tmp_path / "x" / "compose.yaml").read_text())["services"]["server"]
    [device] = service["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": 1, "capabilities": ["gpu"]}


def test_without_compose_the_two_commands_are_docker_s(trained: Workplace, tmp_path: Path) -> None:
    result = trained.ok("-q dockerize load:1 --base my/python:3.12 --output", tmp_path / "my image")
    assert not (tmp_path / "my image" / "compose.yaml").exists()
    assert "ARG BASE=my/python:3.12\n" in (tmp_path / "my image" / "Dockerfile").read_text()
    build, run = [line.strip() for line in result.out.splitlines() if line.strip().startswith("docker ")]
    assert shlex.split(build) == ["docker", "build", "--tag", "stablernn-load:1", str(tmp_path / "my image")]
    words = shlex.split(run)
    assert words[-1] == "stablernn-load:1"
    assert f"type=bind,source={tmp_path / 'my image' / 'secrets'},target=/run/secrets,readonly" in words
    assert "STABLERNN_TOKENS_FILE=/run/secrets/tokens" in words
    for line in (tmp_path / "my image" / "secrets" / "tokens").read_text().split():
        assert line in ("infer", "admin") or line not in result.out


def test_done_again_it_keeps_the_secrets_and_replaces_the_rest(workplace: Workplace) -> None:
    workplace.ok("-q dockerize digits --output image --compose")
    folder = workplace.path("image")
    secrets = [(folder / "secrets" / name).read_text() for name in ("tokens", "state_key")]
    (folder / "notes.txt").write_text("mine")
    workplace.ok("-q dockerize load --output image")
    assert [(folder / "secrets" / name).read_text() for name in ("tokens", "state_key")] == secrets
    assert (folder / "notes.txt").read_text() == "mine"
    assert not (folder / "compose.yaml").exists()
    assert [model.name for model in Registry(folder / "registry").list()] == ["load"]
    assert not [path for path in workplace.folder.iterdir() if path.name.startswith(".image")]


def test_a_folder_of_somebody_else_is_left_alone(trained: Workplace, tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM scratch\n")
    assert trained.refusal(f"-q dockerize load --output {tmp_path}") == (
        f"--output {tmp_path} has files that this command did not create. Choose a new or empty folder, or write into "
        "it with --force."
    )
    assert [path.name for path in tmp_path.iterdir()] == ["Dockerfile"]
    trained.ok(f"-q dockerize load --output {tmp_path} --force")
    assert "stablernn" in (tmp_path / "Dockerfile").read_text()


def test_what_was_changed_by_hand_is_not_lost(trained: Workplace, tmp_path: Path) -> None:
    trained.ok(f"-q dockerize load --output {tmp_path / 'x'} --compose")
    compose = tmp_path / "x" / "compose.yaml"
    compose.write_text(compose.read_text().replace("memory: 2g", "memory: 8g"))
    assert trained.refusal(f"-q dockerize load --output {tmp_path / 'x'}") == (
        f"compose.yaml in {tmp_path / 'x'} was changed after this command wrote it. Overwrite it with --force, or "
        "choose another --output."
    )
    assert "memory: 8g" in compose.read_text()
    trained.ok(f"-q dockerize load --output {tmp_path / 'x'} --compose --force")
    assert "memory: 2g" in compose.read_text()


def test_no_registry_is_replaced(workplace: Workplace) -> None:
    shutil.copytree(workplace.registry, workplace.path("image/registry"))
    before = sorted(path for path in workplace.path("image").rglob("*"))
    for arguments in (["--output", "image"], ["--output", "image", "--force"]):
        assert workplace.refusal("-q dockerize load", *arguments) == (
            f"--output {workplace.path('image')} has 'registry' or 'secrets' that this command did not create and "
            "would replace. Choose another folder."
        )
    assert sorted(path for path in workplace.path("image").rglob("*")) == before
    for folder in (workplace.registry, workplace.registry / "x", workplace.folder):
        assert workplace.refusal(f"-q dockerize load --output {folder} --force") == (
            f"--output {folder} and the registry {workplace.registry} overlap. Choose a folder outside of the registry."
        )


@pytest.mark.parametrize(
    ("arguments", "sentence", "code"),
    [
        (["gone"], r"Unknown model 'gone' in the registry .*", 2),
        (["load:9"], r"Model 'load' has no version 9, it has only version 1\.", 2),
        (["load@live"], r"Model 'load' has no alias 'live'\. .*", 2),
        (["load-run/"], r"'load-run/' is a run, but an image serves versions\. .*--name NAME', then give NAME\.", 2),
        (["load", "--base", "a b"], r"--base must be the name of an image such as 'python:3\.11-slim', got 'a b'\.", 2),
        (["load", "--base", "x\nRUN y"], r"--base must be the name of an image .*", 2),
    ],
)
def test_what_cannot_be_done_is_said_and_leaves_nothing(
    trained: Workplace, tmp_path: Path, arguments: list[str], sentence: str, code: int
) -> None:
    result = trained("-q dockerize", *arguments, "--output", tmp_path / "x")
    assert re.fullmatch(sentence, result.err.removeprefix("Error: ").strip(), re.DOTALL), result.err
    assert (result.code, result.out) == (code, "")
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_version_makes_no_image(workplace: Workplace) -> None:
    workplace.ok("-q dockerize load --output image")
    graph = Registry(workplace.registry).get("load").path("step.onnx")
    graph.chmod(0o644)
    graph.write_bytes(graph.read_bytes()[:-1] + b"x")
    before = {path: path.stat().st_mtime_ns for path in workplace.path("image").rglob("*")}
    assert "is damaged" in workplace.refusal("-q dockerize load --output image", code=1)
    assert {path: path.stat().st_mtime_ns for path in workplace.path("image").rglob("*")} == before


def installed(context: Path, folder: Path) -> dict[str, str]:
    """An environment where stablernn is what the wheels hold, in a folder of its own, and not this checkout."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps"]
    subprocess.run([*command, "--no-index", "--target", folder, *context.glob("*.whl")], check=True)
    return {**os.environ, "PYTHONPATH": str(folder)}


@pytest.mark.slow
def test_an_installed_package_is_packed_again(
    made: tuple[Path, dict[str, Any]], trained: Workplace, tmp_path: Path
) -> None:
    folder, document = made
    environment = installed(folder, tmp_path / "site") | trained.environment
    command = [sys.executable, "-m", "stablernn_cli", "-q", "dockerize", "load", "--output", "x", "--json"]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["wheels"] == document["wheels"]
    for wheel in document["wheels"]:
        with zipfile.ZipFile(folder / wheel) as built, zipfile.ZipFile(tmp_path / "x" / wheel) as packed:
            names = {name for name in built.namelist() if not name.endswith("/RECORD")}
            record = next(name for name in packed.namelist() if name.endswith("/RECORD"))
            assert {*names, record} == set(packed.namelist())
            assert all(built.read(name) == packed.read(name) for name in names)
            rows = {row[0]: row[1:] for row in csv.reader(io.StringIO(packed.read(record).decode()))}
            assert rows.keys() == set(packed.namelist())
    assert (tmp_path / "x" / "requirements.txt").read_text() == (folder / "requirements.txt").read_text()
    # What pip makes of it can be run.
    again = installed(tmp_path / "x", tmp_path / "again")
    version = [sys.executable, "-m", "stablernn_cli", "--version"]
    assert subprocess.run(version, env=again, cwd=tmp_path, check=True, capture_output=True).stdout

    changed = tmp_path / "site" / "stablernn_cli" / "errors.py"
    changed.write_text(changed.read_text() + "# mine\n")
    command[command.index("x")] = "y"
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.stderr == (
        "Error: 'stablernn_cli/errors.py' was changed after stablernn was installed, so an image of it would hold "
        "code that was never released. Install stablernn again, or run this from its source tree.\n"
    )
    assert (done.returncode, (tmp_path / "y").exists()) == (1, False)
