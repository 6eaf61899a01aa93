"""HTTP: requests as they arrive and responses as they leave. Imports no route and no handler."""
