"""The size of the project beside its budget: files and code tokens of each folder, words of the documentation.

A token is one of Python's tokenizer, without comments, docstrings and the structure of lines: joined lines gain
nothing, a comment costs nothing. Of other languages: words and symbols outside comments.

``python tools/size.py`` prints the table, and fails where something is above ``tools/budget.toml``; raising a number
there takes a commit of its own that says why. ``--seconds FILE`` also judges the processor time of the quick tests,
which they write if ``STABLERNN_CPU_SECONDS`` names a file.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
import tomllib
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SUFFIXES = {".py", ".c", ".h", ".js", ".css", ".html", ".j2", ".sh"}
STRUCTURE = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    *(tokenize.ENCODING, tokenize.ENDMARKER),
}
SLACK = 1.5
"""The processor time that is allowed is that of the budget times this: processors differ."""


def python_tokens(text: str) -> int:
    """Return the number of code tokens of a Python file."""
    strings = {
        node.lineno
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    }
    return sum(
        token.type not in STRUCTURE and not (token.type == tokenize.STRING and token.start[0] in strings)
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
    )


def measure() -> dict[str, tuple[int, int]]:
    """Return files and tokens by folder, and pages and words of the documentation."""
    sizes: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    listing = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in listing.split():
        path = ROOT / name
        if path.is_symlink() or not path.exists():
            continue
        if path.suffix == ".md" and (name.startswith(("docs/", "benchmarks/")) or "/" not in name):
            key, count = "words", len(path.read_text(encoding="utf-8").split())
        elif path.suffix in SUFFIXES and "/" in name and not name.startswith("."):
            text = path.read_text(encoding="utf-8")
            plain = re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL)
            key = name.partition("/")[0]
            count = python_tokens(text) if path.suffix == ".py" else len(re.findall(r"\w+|[^\w\s]", plain))
        else:
            continue
        sizes[key][0] += 1
        sizes[key][1] += count
    return {key: (files, count) for key, (files, count) in sizes.items()}


def main() -> None:
    budget = tomllib.loads((ROOT / "tools" / "budget.toml").read_text(encoding="utf-8"))
    sizes = measure()
    problems = []
    print(f"{'':12}{'files':>7}{'allowed':>9}{'tokens':>10}{'allowed':>10}")
    for name, allowed in budget["folders"].items():
        files, tokens = sizes.pop(name, (0, 0))
        print(f"{name:12}{files:>7}{allowed['files']:>9}{tokens:>10}{allowed['tokens']:>10}")
        problems += [f"{name} has {files} files, allowed are {allowed['files']}."] * (files > allowed["files"])
        problems += [f"{name} has {tokens} tokens, allowed are {allowed['tokens']}."] * (tokens > allowed["tokens"])
    _, words = sizes.pop("words")
    print(f"{'words of the documentation':38}{words:>10}")
    problems += [f"The documentation has {words} words, allowed are {budget['words']}."] * (words > budget["words"])
    problems += [f"tools/budget.toml has no row for {name}." for name in sizes]
    if "--seconds" in sys.argv:
        seconds = float(Path(sys.argv[sys.argv.index("--seconds") + 1]).read_text(encoding="utf-8"))
        limit = SLACK * budget["quick_test_seconds"]
        print(f"{'processor seconds of the quick tests':38}{seconds:>10.0f}")
        if seconds > limit:
            problems.append(f"The quick tests take {seconds:.0f} s of processor time, allowed are {limit:.0f}.")
    if problems:
        sys.exit("\n".join([*problems, "Make room, or raise tools/budget.toml in a commit that says why."]))


if __name__ == "__main__":
    main()
