"""Engines that run a version: ONNX Runtime, and packages that register one."""
