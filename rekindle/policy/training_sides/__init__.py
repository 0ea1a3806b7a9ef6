"""Training sides: one row of facts for each. Everything else asks the row of a job, and never which training side it is."""
