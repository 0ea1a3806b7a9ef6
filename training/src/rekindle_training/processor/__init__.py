"""The part of the training side that lives in each rank and speaks to the manager."""
