"""Datasets, ways to split them among clients, and federations of a user's own."""
