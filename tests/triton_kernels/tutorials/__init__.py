"""Programs that do what Triton's ten tutorials show, with small sizes; each checks its result."""
