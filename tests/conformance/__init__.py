"""The virtual GPU held against PyTorch: every op, module and optimizer of PyTorch's own databases.

`make conformance` runs it all; `python -m tests.conformance --help` names the filters.
"""
