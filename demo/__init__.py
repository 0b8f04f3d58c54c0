"""Programs that show the package at work on real data."""
