"""Folders of recordings: their listing and labels, and the formats of their files."""
