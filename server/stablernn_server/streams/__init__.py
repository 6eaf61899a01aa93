"""State that is held between requests: streams, sessions, Triton sequences."""
