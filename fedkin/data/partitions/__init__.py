"""The rules by which `fedkin.data.partition.split` shares a dataset out, one module each."""
