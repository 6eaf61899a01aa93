"""`stablernn dockerize`: a build context for a container image that serves chosen models."""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shlex
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stablernn_cli.errors import CommandError, UsageError
from stablernn_cli.image import build_files
from stablernn_cli.image.build_files import Image
from stablernn_cli.options import JsonOption
from stablernn_cli.output import Output
from stablernn_cli.targets import is_run

if TYPE_CHECKING:
    from stablernn_registry import Registry, Version

MARKER = ".stablernn-image.json"
_MODELS = "registry"
_SECRETS = "secrets"
# Files that users may edit; the marker has their hashes, so that changes are noticed.
_TEXTS = ("Dockerfile", ".dockerignore", "compose.yaml")
# The grammar of a repository name in the Docker registry.
_IMAGE_NAME = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*")
_BASE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]*")


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
    gpu: Annotated[bool, typer.Option("--gpu", help="For NVIDIA GPUs: the CUDA build of ONNX Runtime.")] = False,
    compose: Annotated[bool, typer.Option("--compose", help="Also write a compose.yaml.")] = False,
    base: Annotated[
        str, typer.Option(metavar="IMAGE", help="Base image, with Python 3.11 or newer, pip and venv.")
    ] = "python:3.11-slim",
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Write into a folder that this command did not create, or overwrite your changes."
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Write the build context of a container image

    The folder has a Dockerfile, this stablernn as a wheel, pinned requirements, the models, and tokens for the server,
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
        CommandError: If there is nothing to serve, or no wheel can be made.
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
        "wheel": image.wheel,
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
        CommandError: If no wheel can be made.
    """
    from stablernn_cli.image.wheel import requirements, write_wheel
    from stablernn_registry.subset import copy_versions
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
        wheel=write_wheel(stage).name,
        user=_user(),
    )
    texts = {"Dockerfile": build_files.dockerfile(image), ".dockerignore": build_files.dockerignore(image)}
    if compose:
        texts["compose.yaml"] = build_files.compose(image)
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
        for path in (folder / _MODELS, folder / "compose.yaml", *folder.glob("stablernn-*.whl")):
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
            os.chown(path, build_files.USER, build_files.USER)
    if _is_root():
        os.chown(folder, build_files.USER, build_files.USER)


def _user() -> str:
    """Return the owner of the secrets, as whom the server runs: the current user, but not root."""
    if os.name != "posix" or _is_root():
        return f"{build_files.USER}:{build_files.USER}"
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
    run += ["--publish", f"127.0.0.1:{build_files.PORT}:{build_files.PORT}", "--user", image.user]
    run += ["--mount", f"type=bind,source={folder / _SECRETS},target={build_files.SECRETS},readonly"]
    for name, value in build_files.ENVIRONMENT.items():
        run += ["--env", f"{name}={value}"]
    run += ["--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"]
    run += ["--memory", build_files.MEMORY, "--cpus", build_files.CPUS]
    run += ["--stop-timeout", str(build_files.STOP_SECONDS), *(["--gpus", "all"] if image.gpu else []), image.name]
    return [shlex.join(["docker", "build", "--tag", image.name, str(folder)]), shlex.join(run)]


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
