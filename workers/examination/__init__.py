"""Examination of an installation on Kubernetes, link by link: its API server, objects, processes, rights and certificates."""
