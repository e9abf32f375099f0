"""HTML pages that stand alone: one file, no network, light and dark, on a phone and on paper."""
