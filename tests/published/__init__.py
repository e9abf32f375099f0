"""Published measurements of real GPUs, each with its program, and what a plan predicts of them."""
