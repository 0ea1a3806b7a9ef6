"""Control worker whose jobs continue as new after each incident, so that kills meet that step as well."""

import runpy

from workflows import training_job

if __name__ == "__main__":
    training_job.ROOM = 0
    runpy.run_module("workers.control", run_name="__main__", alter_sys=True)
