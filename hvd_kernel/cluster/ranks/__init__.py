"""The kernel's model of a cluster's ranks: which live, which have died, and which processes replace them."""
