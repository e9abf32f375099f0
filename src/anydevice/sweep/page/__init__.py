"""A sweep as one HTML page."""
