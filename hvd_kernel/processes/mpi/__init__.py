"""MPI as the starter of ranks: its command line, and the network of its hosts."""
