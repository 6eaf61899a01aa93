"""The number of CPUs that this process may use: its affinity and the container's quota, not the host's count."""

from __future__ import annotations

import math
import os
from pathlib import Path


def available_cpus(cgroup_root: Path = Path("/sys/fs/cgroup")) -> int:
    """Return how many CPUs this process may use at once, at least 1.

    Args:
        cgroup_root: Mount point of the control groups; another folder in tests.
    """
    # Systems other than Linux do not tell the affinity.
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _quota(cgroup_root)
    return affinity if quota is None else max(1, min(affinity, math.ceil(quota)))


def _quota(root: Path) -> float | None:
    """Return the quota of cgroup v2 (``cpu.max``) or v1 (``cpu.cfs_*``) in CPUs; None when there is none."""
    try:
        if (root / "cpu.max").exists():
            quota, period = (root / "cpu.max").read_text().split()
            return None if quota == "max" else int(quota) / int(period)
        quota = (root / "cpu" / "cpu.cfs_quota_us").read_text()
        period = (root / "cpu" / "cpu.cfs_period_us").read_text()
        # Version 1 writes -1 for no quota.
        return int(quota) / int(period) if int(quota) > 0 else None
    except (OSError, ValueError):
        # No control groups here, or files of another form.
        return None
