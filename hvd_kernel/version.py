"""The version of this package. A shared leaf: comparing versions does not import the package's root."""

__version__ = "0.1.0"
