"""Side-by-side measurements: what is measured, and how, is in README.md beside this file."""
