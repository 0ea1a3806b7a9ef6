"""Measurements of recoveries on this machine, with the machine's lower bound measured in the same run. `make bench`."""
