"""Formatting of ranks and numbers as people read them. A shared leaf."""
