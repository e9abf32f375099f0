"""Packages from PyPI, unmodified, on virtual GPUs: the same program there and on the CPU.

`make test-ecosystem` installs them all and runs these tests; `make test` has two of the packages.
"""
