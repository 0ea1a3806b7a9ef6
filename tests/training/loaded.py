"""Processes that have torch loaded when they start, which takes seconds: forks of a server that loads it once."""

import multiprocessing

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["rekindle_training.adapter.communicator", "rekindle_training.adapter.copying"])
