"""`stablernn dockerize`: chosen models and what serves them, as a folder that a container image is built from."""

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

from stablernn_cli import image_files
from stablernn_cli.errors import CommandError, UsageError
from stablernn_cli.image_files import Image
from stablernn_cli.output import JsonOption, Output
from stablernn_cli.targets import is_run

if TYPE_CHECKING:
    from stablernn_registry import Registry, Version

MARKER = ".stablernn-image.json"
_MODELS = "registry"
_SECRETS = "secrets"
# What the command writes for a person to read, who may have changed it since.
_TEXTS = ("Dockerfile", ".dockerignore", "compose.yaml")
_IMAGE_NAME = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*")
_BASE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]*")


def dockerize(
    context: typer.Context,
    refs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[REF]...",
            help="What it serves: NAME, NAME:VERSION or NAME@ALIAS; default: the highest version of every model.",
            show_default=False,
        ),
    ] = None,
    folder: Annotated[
        Path, typer.Option("--output", metavar="DIR", help="Folder to write; what this command wrote is replaced.")
    ] = Path("stablernn-image"),
    gpu: Annotated[bool, typer.Option("--gpu", help="For NVIDIA GPUs: the CUDA build of ONNX Runtime.")] = False,
    compose: Annotated[bool, typer.Option("--compose", help="Write a compose.yaml too.")] = False,
    base: Annotated[
        str, typer.Option(metavar="IMAGE", help="Image to build from; it needs Python 3.11 or newer, pip and venv.")
    ] = "python:3.11-slim",
    force: Annotated[
        bool, typer.Option("--force", help="Write into a folder that this command did not make, or over your changes.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Write a folder that a container image is built from

    It holds a Dockerfile, this stablernn as a wheel, pinned requirements, the models, and tokens for the server, which
    stay out of the image. Prints the two commands that build and run it. No torch is in the image.

    Example: stablernn dockerize digits@production --output digits-image --compose
    """
    output = Output.of(context, as_json)
    if _BASE.fullmatch(base) is None:
        raise UsageError(f"--base is the name of an image such as 'python:3.11-slim', got '{base:.100}'.")
    with output.status("Collecting the models and what serves them ..."):
        document = write(refs or (), folder, gpu=gpu, compose=compose, base=base, force=force)
    if as_json:
        output.document(document)
        return
    output.facts(
        {
            "folder": document["output"],
            "serves": ", ".join(document["serves"]),
            "tokens": f"{document['tokens_file']}, for its owner alone; the image holds none",
            "state key": document["state_key_file"],
        }
    )
    output.text("\nBuild and run it:")
    for line in document["commands"]:
        output.text(f"  {line}")


def write(refs: Sequence[str], folder: Path, *, gpu: bool, compose: bool, base: str, force: bool) -> dict[str, Any]:
    """Write the build context; what ``dockerize --json`` prints.

    Raises:
        UsageError: If a reference names no version, or the folder is not to be written to.
        CommandError: If there is nothing to serve, or no wheel can be made.
    """
    from stablernn_registry import Registry

    registry = Registry()
    folder = folder.absolute()
    chosen = _chosen(registry, refs)
    _check_folder(folder, registry.root, force=force)
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Beside the folder and on its disk: what is there is replaced only when everything else has worked.
    stage = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        image = _staged(stage, registry, chosen, gpu=gpu, compose=compose, base=base)
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


def _chosen(registry: Registry, refs: Sequence[str]) -> dict[str, Version]:
    """The versions by the references that the server is given; without an alias these name the version."""
    from stablernn_registry import RefError

    names = refs or [model.name for model in registry.list()]
    if not names:
        raise CommandError(f"The registry {registry.root} holds no models; publish one with 'stablernn export'.")
    found: dict[str, Version] = {}
    for text in names:
        try:
            version = registry.get(text)
        except RefError as error:
            if is_run(text):
                raise UsageError(
                    f"'{text}' is a run, and an image serves versions. Publish it with 'stablernn export {text} --name "
                    "NAME', then give NAME."
                ) from error
            raise
        found[text if "@" in text else version.ref] = version
    return found


def _staged(
    stage: Path, registry: Registry, chosen: dict[str, Version], *, gpu: bool, compose: bool, base: str
) -> Image:
    from stablernn_cli.own_wheel import requirements, write_wheel
    from stablernn_registry.subset import copy_versions
    from stablernn_runtime import ServedModel

    copy = copy_versions(registry, list(chosen.values()), stage / _MODELS)
    for ref in chosen:
        # What cannot be served is found here, and not by a container that starts over and over.
        ServedModel.load(copy.get(ref), "cpu")
    (stage / "requirements.txt").write_text(requirements("gpu" if gpu else "cpu"), encoding="utf-8")
    image = Image(
        name=_image_name(list(chosen.values())),
        base=base,
        gpu=gpu,
        models=tuple(chosen),
        digests={version.ref: version.digest for version in chosen.values()},
        wheel=write_wheel(stage).name,
        user=_user(),
    )
    texts = {"Dockerfile": image_files.dockerfile(image), ".dockerignore": image_files.dockerignore(image)}
    if compose:
        texts["compose.yaml"] = image_files.compose(image)
    for name, text in texts.items():
        (stage / name).write_text(text, encoding="utf-8")
    marker = {"format": "stablernn-image", "schema": 1, "sha256": {name: _hash(stage / name) for name in texts}}
    (stage / MARKER).write_text(json.dumps(marker, indent=2) + "\n", encoding="utf-8")
    for path in (*stage.glob("*.whl"), *(stage / name for name in (*texts, "requirements.txt", MARKER))):
        path.chmod(0o644)
    return image


def _check_folder(folder: Path, registry: Path, *, force: bool) -> None:
    """Whether the folder may be written to.

    Raises:
        UsageError: If that would lose something of somebody else.
    """
    here, there = folder.resolve(), registry.resolve()
    if here == there or here in there.parents or there in here.parents:
        raise UsageError(f"--output {folder} and the registry {registry} overlap. Choose a folder outside of it.")
    if not folder.exists():
        return
    if not folder.is_dir():
        raise UsageError(f"--output {folder} is a file. Choose a folder.")
    written = _written(folder)
    if written is None:
        if (folder / _MODELS).exists() or (folder / _SECRETS).exists():
            raise UsageError(
                f"--output {folder} holds '{_MODELS}' or '{_SECRETS}' that this command did not make, and it would "
                "replace them. Choose another folder."
            )
        if any(folder.iterdir()) and not force:
            raise UsageError(
                f"--output {folder} holds files that this command did not make. Choose a new or empty folder, or write "
                "into it with --force."
            )
        return
    changed = [name for name, sha256 in written.items() if (folder / name).exists() and _hash(folder / name) != sha256]
    if changed and not force:
        raise UsageError(
            f"{', '.join(sorted(changed))} in {folder} was changed after this command wrote it. Write over it with "
            "--force, or choose another --output."
        )


def _written(folder: Path) -> dict[str, str] | None:
    """Hashes of the texts that were written to a folder; None if this command did not make it."""
    try:
        marker = json.loads((folder / MARKER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(marker, dict) or marker.get("format") != "stablernn-image":
        return None
    hashes = marker.get("sha256")
    return {name: str(hashes[name]) for name in _TEXTS if name in hashes} if isinstance(hashes, dict) else None


def _replace(folder: Path, stage: Path) -> None:
    """Puts what was staged in place of what was written before; the secrets stay."""
    folder.mkdir(exist_ok=True)
    if _written(folder) is not None:
        for path in (folder / _MODELS, folder / "compose.yaml", *folder.glob("stablernn-*.whl")):
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    # The marker comes last: it vouches for the rest.
    for path in sorted(stage.iterdir(), key=lambda path: path.name == MARKER):
        os.replace(path, folder / path.name)


def _write_secrets(folder: Path) -> None:
    """Tokens and state key, made once: clients and streams go on after the image is built anew."""
    folder.mkdir(mode=0o700, exist_ok=True)
    for name, lines in (("tokens", ("infer ", "admin ")), ("state_key", ("",))):
        path = folder / name
        if not path.exists():
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
                file.writelines(f"{line}{secrets.token_hex(32)}\n" for line in lines)
        if _is_root():
            os.chown(path, image_files.USER, image_files.USER)
    if _is_root():
        os.chown(folder, image_files.USER, image_files.USER)


def _user() -> str:
    """Who owns the secrets, and therefore runs the server: whoever runs this; root only lends them its own right."""
    if os.name != "posix" or _is_root():
        return f"{image_files.USER}:{image_files.USER}"
    return f"{os.getuid()}:{os.getgid()}"


def _is_root() -> bool:
    return os.name == "posix" and os.getuid() == 0


def _image_name(versions: Sequence[Version]) -> str:
    if len(versions) == 1 and _IMAGE_NAME.fullmatch(versions[0].name):
        return f"stablernn-{versions[0].name}:{versions[0].version}"
    return "stablernn-models"


def _commands(folder: Path, image: Image, *, compose: bool) -> list[str]:
    if compose:
        words = ["docker", "compose", "--file", str(folder / "compose.yaml")]
        return [shlex.join([*words, "build"]), shlex.join([*words, "up", "--detach", "--wait"])]
    run = ["docker", "run", "--detach", "--name", "stablernn", "--restart", "unless-stopped"]
    run += ["--publish", f"127.0.0.1:{image_files.PORT}:{image_files.PORT}", "--user", image.user]
    run += ["--mount", f"type=bind,source={folder / _SECRETS},target={image_files.SECRETS},readonly"]
    for name, value in image_files.ENVIRONMENT.items():
        run += ["--env", f"{name}={value}"]
    run += ["--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"]
    run += ["--memory", image_files.MEMORY, "--cpus", image_files.CPUS]
    run += ["--stop-timeout", str(image_files.STOP_SECONDS), *(["--gpus", "all"] if image.gpu else []), image.name]
    return [shlex.join(["docker", "build", "--tag", image.name, str(folder)]), shlex.join(run)]


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
