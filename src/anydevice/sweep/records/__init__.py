"""What a sweep keeps on disk: a record for each run, and who works at it."""
