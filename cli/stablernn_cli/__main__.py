"""`python -m stablernn_cli` is `stablernn`, also where the script is not on the path."""

from __future__ import annotations

from stablernn_cli.main import main

main()
