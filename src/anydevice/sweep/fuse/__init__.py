"""Runs that differ in numbers alone, trained as one."""
