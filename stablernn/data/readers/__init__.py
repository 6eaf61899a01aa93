"""Readers of file formats. They return numpy arrays and import no torch."""
