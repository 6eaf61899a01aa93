"""The datasets of the papers by name: what each is, where its files are looked for or fetched, how it is read.

One file a family of sources; ``entry.py`` says what a dataset is, ``places.py`` where files lie, ``fetch.py`` how they
get there. ``stablernn.data.catalog`` puts them together.
"""
