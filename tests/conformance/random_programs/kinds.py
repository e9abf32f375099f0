"""Every kind of step: its function, and how often it comes."""

from tests.conformance.random_programs import (
    database,
    elementwise,
    functions,
    indices,
    layers,
    places,
    shapes,
    sparse,
    training,
)

KINDS = (
    elementwise.KINDS | shapes.KINDS | indices.KINDS | places.KINDS | layers.KINDS
    | training.KINDS | functions.KINDS | sparse.KINDS | database.KINDS
)  # fmt: skip
