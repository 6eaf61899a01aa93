"""Times of a training step, of inference on whole sequences and of one streamed step, beside the limit and peers.

The command ``stablernn bench`` and ``benchmarks/speed.py`` share these modules. They import torch, so that the command
imports them when it runs.
"""
