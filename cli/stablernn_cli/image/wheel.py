"""The wheel of the running stablernn, and the pinned requirements of its image.

A checkout, or an editable installation of one, builds the wheel from its sources. An installed package has none: its
files are packed again, each compared with the hash in the installation's RECORD.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import importlib.util
import io
import subprocess
import sys
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path
from typing import Literal

from stablernn_cli.errors import CommandError

Variant = Literal["cpu", "gpu"]

# Files of the .dist-info folder that belong to the wheel; the others describe this one installation.
_DESCRIPTION = {"METADATA", "WHEEL", "entry_points.txt"}
# The earliest date of the zip format. Equal content gives equal bytes, so that image builders reuse their layers.
_ZIP_DATE = (1980, 1, 1, 0, 0, 0)


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


def write_wheel(folder: Path) -> Path:
    """Write the wheel of the running stablernn into a folder, and return its path.

    Raises:
        CommandError: If it cannot be made; the message says what to do.
    """
    root = checkout()
    return _pack_installed(folder) if root is None else _build(root, folder)


def _build(root: Path, folder: Path) -> Path:
    # hatchling is the build backend and needs no network; pip makes an environment for it.
    if importlib.util.find_spec("hatchling") is not None:
        command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    elif importlib.util.find_spec("pip") is not None:
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-deps"]
        command += ["--wheel-dir", str(folder), str(root)]
    else:
        raise CommandError(
            f"The wheel cannot be built from {root}: this environment has neither hatchling nor pip. Install one of "
            "them: pip install hatchling."
        )
    process = subprocess.run(command, cwd=root, capture_output=True, text=True)
    wheels = sorted(folder.glob("stablernn-*.whl"))
    if process.returncode or len(wheels) != 1:
        reason = (process.stderr.strip() or process.stdout.strip() or "it wrote no wheel").splitlines()[-1]
        raise CommandError(f"The wheel cannot be built from {root}: {reason} See all output with: {' '.join(command)}")
    return wheels[0]


def _pack_installed(folder: Path) -> Path:
    try:
        distribution = metadata.distribution("stablernn")
    except metadata.PackageNotFoundError as error:
        raise CommandError(
            f"The files in {Path(__file__).parents[1]} belong to no installed package, so no wheel can be built. "
            "Install stablernn with pip, or run it from its source tree."
        ) from error
    paths = sorted((path for path in distribution.files or () if _is_in_wheel(path)), key=str)
    rows: list[tuple[str, str, str]] = []
    tag = _tag(distribution)
    target = folder / f"stablernn-{distribution.version}-{tag}.whl"
    description = ""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in paths:
            content = _content(path)
            rows.append((path.as_posix(), _hash(content), str(len(content))))
            _add(archive, path.as_posix(), content)
            if path.name == "METADATA":
                description = path.parts[0]
        if not description or not any(path.parts[0] == "stablernn_server" for path in paths):
            raise CommandError(
                "The installed stablernn does not list its files, so no wheel can be made of it. Install it again with "
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
    if path.hash is not None and f"{path.hash.mode}={path.hash.value}" != _hash(content):
        raise CommandError(
            f"'{path}' was changed after stablernn was installed, so an image of it would hold code that was never "
            "released. Install stablernn again, or run this from its source tree."
        )
    return content


def _hash(content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest())
    return f"sha256={digest.rstrip(b'=').decode()}"


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    entry = zipfile.ZipInfo(name, _ZIP_DATE)
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = 0o644 << 16
    archive.writestr(entry, content)
