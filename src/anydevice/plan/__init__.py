"""Memory and time, foretold from a run on a hollow GPU."""
