"""Transports: HTTP and WebSocket, blocking or for asyncio."""
