"""Repairs of tables: one file each, with the option of :class:`~stablernn.data.options.Repairs` that asks for it.

They work on arrays, know no file format, and return counts for the notes of the data: nothing is repaired in silence.
"""
