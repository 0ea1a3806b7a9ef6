"""Admission webhook: refuses jobs with wrong parameters, and adds the environment variables of their strategies to new ones."""
