"""The version of the library, which the package metadata reads from here."""

__version__ = "0.1.0"
