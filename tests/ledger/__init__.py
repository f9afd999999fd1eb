"""One module a page of the docs."""
