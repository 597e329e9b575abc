"""Sub-commands of %hvd: one file for each subject, their table in ``table``."""
