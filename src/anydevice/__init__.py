"""Write a PyTorch program once; run it on any device; know how it will run before you have it."""

__version__ = "0.1.0"
