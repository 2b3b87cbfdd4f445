"""Readers for the files that publishers ship, one module per family of formats."""
