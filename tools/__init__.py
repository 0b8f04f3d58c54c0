"""Development tools that `make` calls."""
