"""A live page about all runs under a folder: `fedkin dashboard DIR`."""
