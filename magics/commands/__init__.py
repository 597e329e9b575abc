"""The magic commands: one file for each, and the index of %hvd's words."""
