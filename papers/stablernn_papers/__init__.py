"""Published tables, trained again: what a table is (``table``), which there are (``tables``), how one is made."""
