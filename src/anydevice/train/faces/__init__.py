"""A trial under the names that other libraries use, and their modules in a trial."""
