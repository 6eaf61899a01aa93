"""Named datasets of the papers: each is an entry point of the group ``stablernn.datasets``."""
