"""Bearer tokens, roles and the TLS certificate."""
