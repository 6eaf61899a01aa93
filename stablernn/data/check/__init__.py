"""A look at a file or a named dataset before anything is trained on it: what is in it, and what is wrong with it.

Files are read by the readers that training uses. Where one of them refuses, its sentence is the first problem, and the
rest is told from the parts that can be read.
"""

from stablernn.data.check._check import check_data, check_source
from stablernn.data.check._report import Column, DataReport, Finding

__all__ = ["Column", "DataReport", "Finding", "check_data", "check_source"]
