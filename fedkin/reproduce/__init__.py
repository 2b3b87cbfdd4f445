"""The papers' tables as data, and the runs that regenerate them beside the printed numbers.

printed.csv   table, row, column, mean, std: what the papers print
cells.toml    the exact configuration of every cell
cells.py      both together
choices.csv   what papers leave open, and how far it moved a number here
running.py    runs a cell and keeps a small JSON file of what came out
page.py       docs/RESULTS.md, made from these files
"""
