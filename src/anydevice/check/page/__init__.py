"""The page of a check."""
