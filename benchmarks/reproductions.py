"""Results of `stablernn reproduce` in this repository.

    python benchmarks/reproductions.py store reproductions/copy reproductions/mnist-pixel
    python benchmarks/reproductions.py draw robustness

``store`` writes the results of a folder to ``papers/stablernn_papers/results/TABLE``, with their picture in
``docs/images``; then `make docs` writes the page. ``draw`` draws the pictures of stored results again.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

from stablernn.atomic_files import read_json
from stablernn.data.messages import pluralize
from stablernn.errors import ConfigError, StableRNNError
from stablernn_papers.kinds import kind_of
from stablernn_papers.merging import merge_results
from stablernn_papers.results_file import read_results, write_results
from stablernn_papers.stored_results import PICTURES, STORED, picture_name
from stablernn_papers.table import FULL, Table
from stablernn_papers.tables import published_table

ROOT = Path(__file__).parents[1]


def main(words: list[str] | None = None, root: Path = ROOT) -> int:
    """Run a command line, and return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    storing = commands.add_parser("store", help="store results of folders in the repository")
    storing.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="such as reproductions/copy")
    drawing = commands.add_parser("draw", help="draw the pictures of stored results again")
    drawing.add_argument("tables", nargs="+", metavar="TABLE")
    arguments = parser.parse_args(words)
    try:
        if arguments.command == "draw":
            for table in arguments.tables:
                print(*draw(table, root), sep="\n")
        else:
            for folder in arguments.folders:
                print(*store(folder, root), sep="\n")
    except (StableRNNError, OSError) as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    return 0


def store(folder: Path, root: Path) -> list[str]:
    """Store the results of a reproduction in a checkout; stored runs that the folder lacks stay.

    The folder may be in use by a process that trains.

    Args:
        folder: Folder of the reproduction, such as ``reproductions/copy``.
        root: The repository.

    Returns:
        A sentence about each file that was written.

    Raises:
        ConfigError: If there are no results of the full protocol, they were made from uncommitted changes, or lack runs
            that their comparison needs.
        CheckpointError: If a file was edited, or cannot be read.
    """
    table = _table_of(folder)
    results = read_results(folder / "results.json")
    if results is None:
        raise ConfigError(f"'{folder}' has no results yet. Run 'stablernn reproduce {table.key}' to its end.")
    commits = {f"{run['row']}, seed {run['seed']}": run["commit"] for run in results["runs"]}
    _check_commits(folder, {**commits, "results.json": results["environment"]["commit"]})
    path = root / STORED / table.key / "results.json"
    stored = read_results(path)
    if stored is not None:
        results = merge_results(table, stored, results)
    path.parent.mkdir(parents=True, exist_ok=True)
    results = write_results(path, results)
    return [f"stored {pluralize(len(results['runs']), 'run')}, {results['state']}: {path}", *draw(table.key, root)]


def draw(key: str, root: Path) -> list[str]:
    """Draw the picture of the stored results of a table, if it has one.

    Returns:
        A sentence about the picture; none without a picture.

    Raises:
        ConfigError: If the repository has no results of the table.
        CheckpointError: If they were edited.
    """
    table = published_table(key)
    path = root / STORED / key / "results.json"
    results = read_results(path)
    if results is None:
        raise ConfigError(f"There are no results of '{key}' to draw: '{path}' does not exist.")
    if not table.has_picture:
        return []
    picture = root / PICTURES / picture_name(key)
    kind_of(table).draw(picture, table, results)
    return [f"drew {picture}"]


def _table_of(folder: Path) -> Table:
    path = folder / "protocol.json"
    if not path.is_file():
        raise ConfigError(f"'{folder}' is no folder of a reproduction: it has no protocol.json.")
    protocol = read_json(path)
    if protocol["name"] != FULL:
        raise ConfigError(
            f"'{folder}' is the {protocol['name']} reproduction of '{protocol['table']}', which compares nothing and "
            "is not stored. Run it without --short."
        )
    return published_table(protocol["table"])


def _check_commits(folder: Path, commits: Mapping[str, str | None]) -> None:
    """Refuse what was made by code that no commit has, given the commit of each run and of the results."""
    unclean = [name for name, commit in commits.items() if commit is None or commit.endswith("-dirty")]
    if unclean:
        raise ConfigError(
            f"'{folder}' was made by code that no commit has: {'; '.join(unclean[:5])}. Commit the changes and run "
            "'stablernn reproduce' again, for runs that are named here in another folder."
        )


if __name__ == "__main__":
    sys.exit(main())
