"""The words behind %hvd: one file for each subject, their table in ``table``."""
