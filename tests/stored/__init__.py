"""Formats that outlive the code which wrote them, each with an example of every version."""
