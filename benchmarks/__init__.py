"""Figures of recoveries on this machine, with the machine's floor measured in the same run. `make bench`."""
