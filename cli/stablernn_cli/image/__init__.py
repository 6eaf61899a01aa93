"""Files that `stablernn dockerize` writes: those of a build context, and the wheel."""
