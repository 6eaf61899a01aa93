"""`stablernn registry copy`: the files of a version in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stablernn_cli.options import JsonOption, RefArgument
from stablernn_cli.output import Output, count_of


def copy(
    context: typer.Context,
    ref: RefArgument,
    folder: Annotated[
        Path, typer.Option("--output", metavar="FOLDER", help="New or empty folder.", show_default=False)
    ],
    files: Annotated[
        list[str] | None,
        typer.Option(
            "--file",
            metavar="NAME",
            help="A file of the version, or manifest.json, may be repeated; default: all of them.",
            show_default=False,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Copy the files of a version to a folder

    For programs that know no registry, such as one that runs step.onnx on a device. Every byte is checked against its
    hash, and the folder gets all files or none. manifest.json has the order of features and labels.

    Example: stablernn registry copy digits@production --output digits-files --file step.onnx --file manifest.json
    """
    from stablernn_registry import Registry
    from stablernn_registry.extract import extract_files

    output = Output.of(context, as_json)
    version = Registry().get(ref)
    names = extract_files(version, folder, files or None)
    if as_json:
        output.document({"ref": version.ref, "digest": version.digest, "folder": str(folder), "files": names})
    else:
        output.note(f"Copied {count_of(len(names), 'file')} of {version.ref} to {folder}: {', '.join(names)}.")
