"""Minibatches, augmentation and the losses of tasks."""
