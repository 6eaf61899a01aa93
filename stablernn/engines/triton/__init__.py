"""The training engine ``triton``: a whole sequence in one GPU kernel."""
