"""Jobs of a folder that several processes and machines share."""
