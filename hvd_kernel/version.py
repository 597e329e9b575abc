"""The version of this package, in its own module: comparing versions does not import the package's root."""

__version__ = "0.1.0"
