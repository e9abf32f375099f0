"""The time of a step: what an op, a transfer and a launch cost on a card."""
