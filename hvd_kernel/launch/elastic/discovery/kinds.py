"""Kinds of host discovery besides a script: what stands before the name of one. A leaf: help prints it."""

from __future__ import annotations

from types import MappingProxyType

KINDS = MappingProxyType({"file:": "PATH", "slurm:": "", "kubernetes:": "SERVICE", "kubernetes-dns:": "SERVICE"})
"""A kind -> what is named behind it; empty: nothing is."""
