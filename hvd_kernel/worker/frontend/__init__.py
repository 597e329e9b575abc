"""Horovod's API in a rank's cells: which one it is, and torch imported beside the cells rather than before them."""
