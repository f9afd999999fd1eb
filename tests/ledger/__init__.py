"""List the claims, in one module for each page of the docs."""
