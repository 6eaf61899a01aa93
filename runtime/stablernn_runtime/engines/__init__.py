"""Engines that run a version: ONNX Runtime, and those that packages register."""
