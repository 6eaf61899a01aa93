"""The report on the data of a run that `stablernn data check` prints; imports no torch."""

from __future__ import annotations

from dataclasses import replace

from stablernn.data.check import DataReport, Finding, check_source
from stablernn.data.messages import pluralize
from stablernn.data.step_data import Data
from stablernn.data.types import ClassificationData
from stablernn.training.settings.config import Config, data_options

# Below this many validation sequences one of them moves the accuracy by more than 3 percent.
_FEW_VALIDATED = 30


def check_run_data(config: Config) -> DataReport:
    """Report on the data that settings name, read as training reads it.

    Raises:
        UnknownNameError: If the source is neither a dataset nor a file.
        DataError: If it is a folder.
    """
    report = check_source(data_options(config))
    if report.data is None:
        return report
    return replace(report, warnings=(*report.warnings, *_small_set_warnings(config, report.data)))


def _small_set_warnings(config: Config, data: Data) -> tuple[Finding, ...]:
    """Return a warning with remedies if there are too few labeled sequences for a reliable validation split."""
    if not isinstance(data, ClassificationData) or len(data.validation) >= _FEW_VALIDATED:
        return ()
    remedies = [] if config.model.members > 1 else ["--members 4"]
    if not config.training.refit:
        remedies.append("--set training.refit=true")
    if not remedies:
        return ()
    text = (
        f"Only {pluralize(len(data.validation), 'sequence')} of {len(data.train) + len(data.validation)} can validate, "
        f"each of them {1 / len(data.validation):.1%} of the accuracy. Train several networks and on all "
        f"sequences: {' '.join(remedies)}."
    )
    return (Finding("small_set", text),)
