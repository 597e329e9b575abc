"""The version of this package. A shared leaf, so that whoever compares versions need not import the package's root."""

__version__ = "0.1.0"
