"""Device errors explained with the user's own variables."""
