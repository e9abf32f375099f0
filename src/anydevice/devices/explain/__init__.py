"""Device errors in the user's own words: which variable is where, and the line to change."""
