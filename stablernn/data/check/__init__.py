"""Check a file or a named dataset before training: its content, problems and warnings.

Files are read by the readers that training uses. If a reader rejects a file, its message is the first problem, and the
rest of the report covers the parts that can be read.
"""

from stablernn.data.check.report import Column, DataReport, Finding, merge_settings
from stablernn.data.check.run_check import check_data, check_source

__all__ = ["Column", "DataReport", "Finding", "check_data", "check_source", "merge_settings"]
