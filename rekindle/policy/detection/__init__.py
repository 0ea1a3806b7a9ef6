"""Reading of what a cluster shows: rules, devices, and the observation of a job that they lead to."""
