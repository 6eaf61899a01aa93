"""Stability: what is proved of a step (``bounds``) and of a model (``certificate``), and what is observed (``spectra``,
``lyapunov``). Cells import ``bounds``, so that this package imports nothing by itself."""
