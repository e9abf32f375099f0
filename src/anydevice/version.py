"""The version of anydevice."""

__version__ = "0.1.0"
