"""Many runs: a grid, processes for them, records on disk, tables of what came out."""
