"""Published tables, trained again: what a table is (``table``), which there are (``published``), how one is made."""
