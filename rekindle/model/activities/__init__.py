"""Arguments and results of activities. Built in `workflows/steps.py` and the modes."""
