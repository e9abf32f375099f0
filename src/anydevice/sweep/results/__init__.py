"""A sweep's results: tables, the live view, TensorBoard."""
