"""How a program, and what it starts, gets its GPUs."""
