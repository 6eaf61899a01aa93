"""The models that a server has open."""
