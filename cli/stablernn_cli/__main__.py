"""Entry point of `python -m stablernn_cli`, for environments whose scripts are not on the path."""

from __future__ import annotations

from stablernn_cli.main import main

main()
