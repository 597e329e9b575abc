"""Horovod's API in a rank's cells: the choice of the framework, and its import during rather than before cells."""
