"""Collectives outside of JAX's compiled programs, past XLA: where their memory is, and how they are carried out."""
