"""The configuration that `data check --fix` writes: the options of the command, and settings that mend its findings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stablernn_cli.errors import CommandError, UsageError

if TYPE_CHECKING:
    from stablernn.data.check import DataReport
    from stablernn.training import Config

_LINE_WIDTH = 100
_COLUMNS_AS_SERIES = "Where each column is a series to forecast, set data.channels_as_series=true in its place."


def check_path(path: Path) -> None:
    """Refuse a file that must not be written, before the data is read.

    Raises:
        UsageError: If it does not end in .yaml or .yml, or exists.
    """
    if path.suffix.lower() not in (".yaml", ".yml"):
        raise UsageError(f"--fix must end in .yaml or .yml, got '{path}'. Choose another name.")
    if path.exists():
        raise UsageError(f"--fix '{path}' exists already. Remove it, or choose another name.")


def fixed_settings(settings: Config, report: DataReport) -> Config:
    """Return the settings with those that mend the findings of a report.

    Args:
        settings: The settings that were made on the command line or in a file.
        report: The report on their data.
    """
    from stablernn.data.check import merge_settings
    from stablernn.training.settings.load import validate

    tree = settings.model_dump(mode="json", exclude_unset=True)
    return validate({**tree, "data": merge_settings(tree["data"], report.fixes)})


def check_fixed(path: Path, report: DataReport, fixed: DataReport) -> None:
    """Refuse to write settings with which `train` would not accept the data.

    Args:
        path: The file to write.
        report: The report on the data as they are.
        fixed: The report on the data as they are with the settings.

    Raises:
        CommandError: With the first problem that remains.
    """
    if fixed.problems:
        raise CommandError(
            f"'{path}' is not written: no option mends all of '{report.source}'. {fixed.problems[0].text}"
        )


def write_config(path: Path, settings: Config, report: DataReport) -> None:
    """Write settings as YAML, with the findings that they mend as comments.

    Raises:
        CommandError: If the file cannot be written.
    """
    comments = [f"Written by `stablernn data check {report.source} --fix {path}`."]
    comments += [
        f"{', '.join(f'data.{name}' for name in finding.settings)}: {finding.text}"
        for finding in (*report.problems, *report.warnings)
        if finding.settings
    ]
    explained = {name for finding in (*report.problems, *report.warnings) for name in finding.settings}
    comments += [
        f"data.{name}: guessed, and `train` refuses the data without it. Replace it if you mean another."
        + (f" {_COLUMNS_AS_SERIES}" if name == "target" else "")
        for name in report.assumed
        if name not in explained
    ]
    lines = [f"# {' '.join(comment.split())}" for comment in comments]
    tree = settings.model_dump(mode="json", exclude_unset=True)
    categories = tree["data"].get("categories")
    if categories and not any(categories.values()):
        # Names alone, as people write them; training finds the categories.
        tree["data"]["categories"] = list(categories)
    text = "\n".join([*lines, _dump(tree)])
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise CommandError(f"Cannot write '{path}': {error.strerror}. Choose another --fix.") from error


def format_value(value: object) -> str:
    """Return a value as YAML on one line, as ``--set`` takes it."""
    # Imported here, since a serving image lists datasets without it.
    import yaml

    return yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=10**6).removesuffix("...\n").strip()


def _dump(tree: Mapping[str, Any]) -> str:
    import yaml

    return yaml.safe_dump(dict(tree), sort_keys=False, allow_unicode=True, width=_LINE_WIDTH)
