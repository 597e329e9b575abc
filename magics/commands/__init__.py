"""The magic commands: one file for each, and the sub-commands of %hvd."""
