"""`stablernn dockerize`: a build context for a container image that serves chosen models."""

from __future__ import annotations

import base64
import csv
import hashlib
import importlib.util
import io
import json
import os
import re
import secrets
import shlex
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from stablernn_cli.errors import CommandError, UsageError
from stablernn_cli.options import JsonOption, option
from stablernn_cli.output import Output
from stablernn_cli.targets import is_run

if TYPE_CHECKING:
    from stablernn_registry import Registry, Version

USER = 10001
"""User and group of the process in the image, without a name in its /etc/passwd."""
PORT = 8080
SECRETS = "/run/secrets"
STOP_SECONDS = 15
"""Time for a container to stop: the server drains for 8 s and grants 2 s more to a body that is arriving."""
MEMORY = "2g"
CPUS = "2"
PROCESSES = 512
ENVIRONMENT = {
    "STABLERNN_TOKENS_FILE": f"{SECRETS}/tokens",
    "STABLERNN_STATE_KEY_FILE": f"{SECRETS}/state_key",
}
HEALTHCHECK = ("python", "-m", "stablernn_cli.healthcheck")
HEALTH_TIMES = {"interval": "10s", "timeout": "5s", "start_period": "30s", "retries": 3}
MARKER = ".stablernn-image.json"
_MODELS = "registry"
_SECRETS = "secrets"
# Files that users may edit; the marker has their hashes, so that changes are noticed.
_TEXTS = ("Dockerfile", ".dockerignore", "compose.yaml")
# The grammar of a repository name in the Docker registry.
_IMAGE_NAME = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*")
_BASE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]*")
Variant = Literal["cpu", "gpu"]

# The distributions of an image: name, and folder in the checkout.
_DISTRIBUTIONS = {
    "stablernn": ".",
    "stablernn-client": "client",
    "stablernn-registry": "registry",
    "stablernn-runtime": "runtime",
    "stablernn-server": "server",
}
# Files of the .dist-info folder that belong to the wheel; the others describe this one installation.
_DESCRIPTION = {"METADATA", "WHEEL", "entry_points.txt"}
# The earliest date of the zip format. Equal content gives equal bytes, so that image builders reuse their layers.
_ZIP_DATE = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class Image:
    """An image to build.

    Attributes:
        name: Name of the image.
        base: Base image, with Python, pip and venv.
        gpu: True if it has the CUDA build of ONNX Runtime.
        models: References of the models that it serves.
        digests: Digest of each version, by ``NAME:VERSION``.
        wheels: File names of the wheels in the context.
        user: ``UID:GID`` that a container runs as, so that it can read the secrets.
    """

    name: str
    base: str
    gpu: bool
    models: Sequence[str]
    digests: Mapping[str, str]
    wheels: Sequence[str]
    user: str


def dockerize(
    context: typer.Context,
    refs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[REF]...",
            help="Model to serve: NAME, NAME:VERSION or NAME@ALIAS; default: the highest version of every model.",
            show_default=False,
        ),
    ] = None,
    folder: Annotated[
        Path,
        typer.Option(
            "--output", metavar="DIR", help="Folder to write; files of an earlier run of this command are replaced."
        ),
    ] = Path("stablernn-image"),
    gpu: Annotated[bool, option("For NVIDIA GPUs: the CUDA build of ONNX Runtime.")] = False,
    compose: Annotated[bool, option("Also write a compose.yaml.")] = False,
    base: Annotated[
        str, typer.Option(metavar="IMAGE", help="Base image, with Python 3.11 or newer, pip and venv.")
    ] = "python:3.11-slim",
    force: Annotated[
        bool,
        option("Write into a folder that this command did not create, or overwrite your changes."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Write the build context of a container image

    The folder has a Dockerfile, this stablernn as wheels, pinned requirements, the models, and tokens for the server,
    which stay out of the image. Prints the two commands that build and run it. The image has no torch.

    Example: stablernn dockerize digits@production --output digits-image --compose
    """
    output = Output.of(context, as_json)
    if _BASE.fullmatch(base) is None:
        raise UsageError(f"--base must be the name of an image such as 'python:3.11-slim', got '{base:.100}'.")
    with output.status("Collecting the models and the server ..."):
        document = write(refs or (), folder, gpu=gpu, compose=compose, base=base, force=force)
    if as_json:
        output.document(document)
        return
    output.facts(
        {
            "folder": document["output"],
            "serves": ", ".join(document["serves"]),
            "tokens": f"{document['tokens_file']}, readable by its owner only; the image has none",
            "state key": document["state_key_file"],
        }
    )
    output.text("\nBuild and run it:")
    for line in document["commands"]:
        output.text(f"  {line}")


def write(refs: Sequence[str], folder: Path, *, gpu: bool, compose: bool, base: str, force: bool) -> dict[str, Any]:
    """Write the build context, and return the document that ``dockerize --json`` prints.

    Raises:
        UsageError: If a reference names no version, or the folder must not be written to.
        CommandError: If there is nothing to serve, or the wheels cannot be made.
    """
    from stablernn_registry import Registry

    registry = Registry()
    folder = folder.absolute()
    versions = _resolve(registry, refs)
    _check_folder(folder, registry.root, force=force)
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Next to the folder, on the same file system: its files are replaced by renames, after everything else succeeded.
    stage = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        image = _write_stage(stage, registry, versions, gpu=gpu, compose=compose, base=base)
        _replace(folder, stage)
    finally:
        shutil.rmtree(stage, ignore_errors=True)
    _write_secrets(folder / _SECRETS)
    return {
        "output": str(folder),
        "image": image.name,
        "base": base,
        "gpu": gpu,
        "serves": list(image.models),
        "models": [{"ref": ref, "digest": digest} for ref, digest in image.digests.items()],
        "wheels": list(image.wheels),
        "user": image.user,
        "tokens_file": str(folder / _SECRETS / "tokens"),
        "state_key_file": str(folder / _SECRETS / "state_key"),
        "commands": _commands(folder, image, compose=compose),
    }


def _resolve(registry: Registry, refs: Sequence[str]) -> dict[str, Version]:
    """Return the versions by the reference that the server gets: with an alias as it is, else with the number."""
    from stablernn_registry import RefError

    names = refs or [model.name for model in registry.list()]
    if not names:
        raise CommandError(f"The registry {registry.root} holds no models; publish one with 'stablernn export'.")
    versions: dict[str, Version] = {}
    for text in names:
        try:
            version = registry.get(text)
        except RefError as error:
            if is_run(text):
                raise UsageError(
                    f"'{text}' is a run, but an image serves versions. Publish it with 'stablernn export {text} --name "
                    "NAME', then give NAME."
                ) from error
            raise
        versions[text if "@" in text else version.ref] = version
    return versions


def _write_stage(
    stage: Path, registry: Registry, versions: dict[str, Version], *, gpu: bool, compose: bool, base: str
) -> Image:
    """Write all files but the secrets into a temporary folder.

    Raises:
        stablernn_server.errors.ModelLoadError: If a version cannot be served.
        CommandError: If its wheels cannot be made.
    """
    from stablernn_registry.copies import copy_versions
    from stablernn_runtime import ServedModel

    copy = copy_versions(registry, list(versions.values()), stage / _MODELS)
    for ref in versions:
        # A version that cannot be served fails here, instead of in a container that restarts forever.
        ServedModel.load(copy.get(ref), "cpu")
    (stage / "requirements.txt").write_text(requirements("gpu" if gpu else "cpu"), encoding="utf-8")
    image = Image(
        name=_image_name(list(versions.values())),
        base=base,
        gpu=gpu,
        models=tuple(versions),
        digests={version.ref: version.digest for version in versions.values()},
        wheels=[path.name for path in _write_wheels(stage)],
        user=_user(),
    )
    texts = {"Dockerfile": _dockerfile(image), ".dockerignore": _dockerignore(image)}
    if compose:
        texts["compose.yaml"] = _compose_file(image)
    for name, text in texts.items():
        (stage / name).write_text(text, encoding="utf-8")
    marker = {"format": "stablernn-image", "schema": 1, "sha256": {name: _hash(stage / name) for name in texts}}
    (stage / MARKER).write_text(json.dumps(marker, indent=2) + "\n", encoding="utf-8")
    # Readable for the user of the image, whatever the umask is here.
    for path in (*stage.glob("*.whl"), *(stage / name for name in (*texts, "requirements.txt", MARKER))):
        path.chmod(0o644)
    return image


def _check_folder(folder: Path, registry: Path, *, force: bool) -> None:
    """Check that the folder may be written to.

    Raises:
        UsageError: If files would be lost that this command did not write.
    """
    target, source = folder.resolve(), registry.resolve()
    # In either direction, one would be written into the other.
    if target == source or target in source.parents or source in target.parents:
        raise UsageError(
            f"--output {folder} and the registry {registry} overlap. Choose a folder outside of the registry."
        )
    if not folder.exists():
        return
    if not folder.is_dir():
        raise UsageError(f"--output {folder} is a file. Choose a folder.")
    hashes = _written_hashes(folder)
    if hashes is None:
        # Not even --force replaces folders of these names, which may be a registry or hold keys.
        if (folder / _MODELS).exists() or (folder / _SECRETS).exists():
            raise UsageError(
                f"--output {folder} has '{_MODELS}' or '{_SECRETS}' that this command did not create and would "
                "replace. Choose another folder."
            )
        if any(folder.iterdir()) and not force:
            raise UsageError(
                f"--output {folder} has files that this command did not create. Choose a new or empty folder, or write "
                "into it with --force."
            )
        return
    changed = [name for name, sha256 in hashes.items() if (folder / name).exists() and _hash(folder / name) != sha256]
    if changed and not force:
        raise UsageError(
            f"{', '.join(sorted(changed))} in {folder} was changed after this command wrote it. Overwrite it with "
            "--force, or choose another --output."
        )


def _written_hashes(folder: Path) -> dict[str, str] | None:
    """Return the hashes of the texts that were written to a folder; None if this command did not create it."""
    try:
        marker = json.loads((folder / MARKER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(marker, dict) or marker.get("format") != "stablernn-image":
        return None
    hashes = marker.get("sha256")
    return {name: str(hashes[name]) for name in _TEXTS if name in hashes} if isinstance(hashes, dict) else None


def _replace(folder: Path, stage: Path) -> None:
    """Move the staged files into the folder, in place of those of an earlier run; the secrets stay."""
    folder.mkdir(exist_ok=True)
    if _written_hashes(folder) is not None:
        for path in (folder / _MODELS, folder / "compose.yaml", *folder.glob("stablernn*.whl")):
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    # The marker comes last: it states that the other files are complete.
    for path in sorted(stage.iterdir(), key=lambda path: path.name == MARKER):
        os.replace(path, folder / path.name)


def _write_secrets(folder: Path) -> None:
    """Create tokens and state key once, so that clients and streams continue after the image is rebuilt."""
    folder.mkdir(mode=0o700, exist_ok=True)
    for name, lines in (("tokens", ("infer ", "admin ")), ("state_key", ("",))):
        path = folder / name
        if not path.exists():
            # O_EXCL and the mode at creation: at no time is the secret readable for others.
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
                file.writelines(f"{line}{secrets.token_hex(32)}\n" for line in lines)
        if _is_root():
            os.chown(path, USER, USER)
    if _is_root():
        os.chown(folder, USER, USER)


def _user() -> str:
    """Return the owner of the secrets, as whom the server runs: the current user, but not root."""
    if os.name != "posix" or _is_root():
        return f"{USER}:{USER}"
    return f"{os.getuid()}:{os.getgid()}"


def _is_root() -> bool:
    return os.name == "posix" and os.getuid() == 0


def _image_name(versions: Sequence[Version]) -> str:
    if len(versions) == 1 and _IMAGE_NAME.fullmatch(versions[0].name):
        return f"stablernn-{versions[0].name}:{versions[0].version}"
    return "stablernn-models"


def _commands(folder: Path, image: Image, *, compose: bool) -> list[str]:
    if compose:
        compose_command = ["docker", "compose", "--file", str(folder / "compose.yaml")]
        return [shlex.join([*compose_command, "build"]), shlex.join([*compose_command, "up", "--detach", "--wait"])]
    # The options of the service in compose.yaml, as options of `docker run`.
    run = ["docker", "run", "--detach", "--name", "stablernn", "--restart", "unless-stopped"]
    run += ["--publish", f"127.0.0.1:{PORT}:{PORT}", "--user", image.user]
    run += ["--mount", f"type=bind,source={folder / _SECRETS},target={SECRETS},readonly"]
    for name, value in ENVIRONMENT.items():
        run += ["--env", f"{name}={value}"]
    run += ["--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"]
    run += ["--memory", MEMORY, "--cpus", CPUS]
    run += ["--stop-timeout", str(STOP_SECONDS), *(["--gpus", "all"] if image.gpu else []), image.name]
    return [shlex.join(["docker", "build", "--tag", image.name, str(folder)]), shlex.join(run)]


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _dockerfile(image: Image) -> str:
    """Return the Dockerfile: one stage installs the environment, the next copies it and the models."""
    label = " ".join(f"{ref}@{digest}" for ref, digest in image.digests.items())
    wheels = " ".join(image.wheels)
    nvidia = (
        ' \\\n    NVIDIA_VISIBLE_DEVICES=all \\\n    NVIDIA_DRIVER_CAPABILITIES="compute,utility"' if image.gpu else ""
    )
    return f"""\
# Written by `stablernn dockerize`, which overwrites it when it is run again.
ARG BASE={image.base}

FROM ${{BASE}} AS builder
WORKDIR /context
COPY requirements.txt {wheels} ./
# The environment has no pip of its own: the builder's installs into it, and the whole folder is copied.
RUN python3 -m venv --without-pip /opt/stablernn \\
 && python3 -m pip --python /opt/stablernn/bin/python install --no-cache-dir --require-hashes \\
    --requirement requirements.txt \\
 && python3 -m pip --python /opt/stablernn/bin/python install --no-cache-dir --no-deps {wheels}

FROM ${{BASE}}
COPY --from=builder /opt/stablernn /opt/stablernn
COPY registry /registry
LABEL stablernn.nn.models="{label}"
# Without ORT_DISABLE_TELEMETRY, ONNX Runtime sends usage data to its makers.
ENV PATH="/opt/stablernn/bin:$PATH" \\
    PYTHONUNBUFFERED=1 \\
    ORT_DISABLE_TELEMETRY=1 \\
    STABLERNN_REGISTRY=/registry \\
    STABLERNN_MODELS="{",".join(image.models)}" \\
    STABLERNN_HOST=0.0.0.0 \\
    STABLERNN_PORT={PORT}{nvidia}
USER {USER}:{USER}
EXPOSE {PORT}
STOPSIGNAL SIGTERM
# Follows STABLERNN_PORT; it does not know of `serve --port`.
HEALTHCHECK --interval={HEALTH_TIMES["interval"]} --timeout={HEALTH_TIMES["timeout"]} \\
    --start-period={HEALTH_TIMES["start_period"]} --retries={HEALTH_TIMES["retries"]} \\
    CMD {json.dumps(HEALTHCHECK)}
ENTRYPOINT ["stablernn"]
CMD ["serve"]
"""


def _dockerignore(image: Image) -> str:
    """Return the .dockerignore: the builder gets what the Dockerfile copies, never the secrets."""
    names = ("requirements.txt", *image.wheels, "registry")
    return "\n".join(["# Only what the Dockerfile copies.", "*", *(f"!{name}" for name in names), ""])


def _compose_file(image: Image) -> str:
    """Return the compose file: one service that requires tokens and can write to /tmp only."""
    gpu = """
        reservations:
          devices:
            - driver: nvidia
              count: 1
              capabilities: [gpu]"""
    return f"""\
# Written by `stablernn dockerize`. Run it with: docker compose up --build --detach --wait
services:
  server:
    build: .
    image: {json.dumps(image.name)}
    # Compose mounts the secrets with the owner and the mode that they have here: readable by their owner only.
    user: {json.dumps(image.user)}
    ports:
      # Reachable from this machine only. PUBLISH={PORT} opens it to others; tokens then travel unencrypted, unless a
      # proxy in front of it or STABLERNN_TLS_CERT_FILE and STABLERNN_TLS_KEY_FILE encrypt them.
      - "${{PUBLISH:-127.0.0.1:{PORT}}}:{PORT}"
    environment:
{_lines(ENVIRONMENT)}
    secrets:
      - tokens
      - state_key
    read_only: true
    tmpfs:
      - /tmp:mode=1777,size=64m
    cap_drop:
      - ALL
    security_opt:
      - no-new-privileges:true
    healthcheck:
      test: {json.dumps(["CMD", *HEALTHCHECK])}
{_lines(HEALTH_TIMES)}
    restart: unless-stopped
    stop_grace_period: {STOP_SECONDS}s
    deploy:
      resources:
        limits:
          cpus: "{CPUS}"
          memory: {MEMORY}
          pids: {PROCESSES}{gpu if image.gpu else ""}

secrets:
  tokens:
    file: ./secrets/tokens
  state_key:
    file: ./secrets/state_key
"""


def _lines(values: Mapping[str, object]) -> str:
    return "\n".join(f"      {name}: {value}" for name, value in values.items())


def checkout() -> Path | None:
    """Return the source tree that this program runs from; None for an installed package."""
    root = Path(__file__).resolve().parents[3]
    # A folder above an installed package may have a pyproject.toml too, of another project.
    try:
        project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    except (OSError, ValueError, KeyError):
        return None
    return root if project.get("name") == "stablernn" else None


def requirements(variant: Variant) -> str:
    """Return the pinned requirements of the image.

    Raises:
        CommandError: If they are missing from the installation.
    """
    root = checkout()
    # The wheel has them below the package.
    folder = Path(__file__).parents[1] / "requirements" if root is None else root / "requirements"
    path = folder / f"serve-{variant}.txt"
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise CommandError(
            f"This installation lacks {path}, the pinned requirements of the image: {error.strerror}. "
            "Install stablernn again."
        ) from error


def _write_wheels(folder: Path) -> tuple[Path, ...]:
    """Write the wheels of the running stablernn into a folder, and return their paths.

    Raises:
        CommandError: If they cannot be made; the message says what to do.
    """
    root = checkout()
    if root is None:
        return tuple(_pack_installed(name, folder) for name in _DISTRIBUTIONS)
    return tuple(_build(root / path, folder / name) for name, path in _DISTRIBUTIONS.items())


def _build(project: Path, folder: Path) -> Path:
    # hatchling is the build backend and needs no network; pip makes an environment for it.
    if importlib.util.find_spec("hatchling") is not None:
        command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    elif importlib.util.find_spec("pip") is not None:
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-deps"]
        command += ["--wheel-dir", str(folder), str(project)]
    else:
        raise CommandError(
            f"The wheel cannot be built from {project}: this environment has neither hatchling nor pip. Install one of "
            "them: pip install hatchling."
        )
    # Without the path of this checkout in what the wheels require.
    environment = {**os.environ, "STABLERNN_PINS": "1"}
    process = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True)
    wheels = sorted(folder.glob("*.whl"))
    if process.returncode or len(wheels) != 1:
        reason = (process.stderr.strip() or process.stdout.strip() or "it wrote no wheel").splitlines()[-1]
        raise CommandError(
            f"The wheel cannot be built from {project}: {reason} See all output with: {' '.join(command)}"
        )
    target = wheels[0].replace(folder.parent / wheels[0].name)
    folder.rmdir()
    return target


def _pack_installed(name: str, folder: Path) -> Path:
    try:
        distribution = metadata.distribution(name)
    except metadata.PackageNotFoundError as error:
        raise CommandError(
            f"{name} is not installed beside the files in {Path(__file__).parents[1]}, so no wheel can be built of it. "
            "Install stablernn with pip, or run it from its source tree."
        ) from error
    paths = sorted((path for path in distribution.files or () if _is_in_wheel(path)), key=str)
    rows: list[tuple[str, str, str]] = []
    tag = _tag(distribution)
    package = name.replace("-", "_")
    target = folder / f"{package}-{distribution.version}-{tag}.whl"
    description = ""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in paths:
            content = _content(path)
            rows.append((path.as_posix(), _record_hash(content), str(len(content))))
            _add(archive, path.as_posix(), content)
            if path.name == "METADATA":
                description = path.parts[0]
        if not description or not any(path.parts[0] == package for path in paths):
            raise CommandError(
                f"The installed {name} does not list its files, so no wheel can be made of it. Install it again with "
                "pip, or run this from its source tree."
            )
        # RECORD lists every file with its hash, and itself without one.
        record = io.StringIO()
        csv.writer(record, lineterminator="\n").writerows([*rows, (f"{description}/RECORD", "", "")])
        _add(archive, f"{description}/RECORD", record.getvalue().encode())
    return target


def _is_in_wheel(path: metadata.PackagePath) -> bool:
    # Scripts lie outside of site-packages, and each installation creates its own.
    if ".." in path.parts or path.is_absolute() or "__pycache__" in path.parts or len(path.parts) < 2:
        return False
    if path.parts[0].endswith(".dist-info"):
        return path.name in _DESCRIPTION or path.parts[1] == "licenses"
    return True


def _tag(distribution: metadata.Distribution) -> str:
    for line in (distribution.read_text("WHEEL") or "").splitlines():
        if line.startswith("Tag: "):
            return line.removeprefix("Tag: ").strip()
    return "py3-none-any"


def _content(path: metadata.PackagePath) -> bytes:
    try:
        content = Path(str(path.locate())).read_bytes()
    except OSError as error:
        raise CommandError(
            f"'{path}' of the installed stablernn cannot be read: {error.strerror}. Install stablernn again."
        ) from error
    if path.hash is not None and f"{path.hash.mode}={path.hash.value}" != _record_hash(content):
        raise CommandError(
            f"'{path}' was changed after stablernn was installed, so an image of it would hold code that was never "
            "released. Install stablernn again, or run this from its source tree."
        )
    return content


def _record_hash(content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest())
    return f"sha256={digest.rstrip(b'=').decode()}"


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    entry = zipfile.ZipInfo(name, _ZIP_DATE)
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = 0o644 << 16
    archive.writestr(entry, content)
