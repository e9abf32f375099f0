"""One rank of many: worlds, networks, collectives' time."""
