"""The open models of a server: which version answers a request, how versions are opened, and when they are closed."""
