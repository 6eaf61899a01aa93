"""One connection: its protocols (HTTP/1.1, WebSocket, TLS) and the table of open connections."""
