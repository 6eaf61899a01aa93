"""Named datasets of the papers: their descriptions, their files, and functions that read them.

There is one module per family of sources. ``entry.py`` describes a dataset, ``places.py`` finds and verifies files, and
``fetch.py`` downloads them. ``stablernn.data.catalog`` lists all datasets.
"""
