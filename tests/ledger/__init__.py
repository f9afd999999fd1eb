"""List the claims that the docs make. Each page of the docs has a module of its own."""
