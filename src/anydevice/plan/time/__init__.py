"""The time of a step: what ops, transfers and launches cost on a GPU."""
