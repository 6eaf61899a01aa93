"""Deprecated name of :mod:`stablernn.certificates`, kept for one release."""
