"""Results of `stablernn reproduce` in this repository, and runs that another checkout goes on with.

    python benchmarks/reproductions.py store reproductions/copy reproductions/mnist-pixel
    python benchmarks/reproductions.py restore mnist-pixel
    python benchmarks/reproductions.py draw robustness

``store`` writes the results of a folder to ``benchmarks/results/reproduce/TABLE``, with their picture in
``docs/images``, and what resuming its unfinished runs needs to ``benchmarks/results/unfinished/TABLE``; then
`make docs` writes the page. ``restore`` copies these runs to ``reproductions/TABLE``, where `stablernn reproduce TABLE`
goes on with them, in a fresh clone too. ``draw`` draws the pictures of stored results again.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from stablernn.errors import StableRNNError
from stablernn.reproduce.folder import ROOT as REPRODUCTIONS
from stablernn.reproduce.repository import LARGEST_FILE, draw, restore, store

ROOT = Path(__file__).parents[1]


def main(words: list[str] | None = None, root: Path = ROOT) -> int:
    """Run a command line, and return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    storing = commands.add_parser("store", help="store results and unfinished runs of folders in the repository")
    storing.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="such as reproductions/copy")
    storing.add_argument(
        "--largest-file", type=int, default=LARGEST_FILE, metavar="BYTES", help="of an unfinished run; %(default)s"
    )
    restoring = commands.add_parser("restore", help="copy the unfinished runs of a table to where they go on")
    restoring.add_argument("table", metavar="TABLE")
    restoring.add_argument("--output", type=Path, metavar="DIR", help="default: reproductions/TABLE")
    drawing = commands.add_parser("draw", help="draw the pictures of stored results again")
    drawing.add_argument("tables", nargs="+", metavar="TABLE")
    arguments = parser.parse_args(words)
    try:
        if arguments.command == "restore":
            output = arguments.output or REPRODUCTIONS / arguments.table
            print(*restore(arguments.table, root, output), sep="\n")
        elif arguments.command == "draw":
            for table in arguments.tables:
                print(*draw(table, root), sep="\n")
        else:
            for folder in arguments.folders:
                print(*store(folder, root, largest_file=arguments.largest_file), sep="\n")
    except (StableRNNError, OSError) as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
