"""The table of modes, and the decision which of them recovers a job."""
