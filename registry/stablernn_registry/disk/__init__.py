"""Files of a registry: where they are, and how they are read and written safely."""
