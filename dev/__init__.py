"""Development tools, run from a checkout as `python -m dev.<name>`; none of them is installed with the package."""
