"""Maximum sizes of jobs and of texts about them. The product is made and tested for these sizes and rejects larger ones."""

MOST_PODS = 5_000
"""Pods with ranks of one job."""

MOST_RANKS = 10_000
"""Ranks of one job. Reports of the training side about all of them fit into one payload."""

MOST_STANDBYS = 16
"""Standbys of one job. Their state fits into one payload beside everything else."""

LONGEST_LABEL = 63
"""Maximum characters of the value of a label, by which the pods of most kinds of jobs are found."""

LONGEST_NAME = 253
"""Characters of the name of an object, as in Kubernetes."""

LONGEST_TEXT = 1_024
"""Characters of other texts that are stored: the value of a label or an annotation, a message."""

LONGEST_NOTE = 300
"""Characters of texts of which a job stores many, such as the message of a fault."""

LONGEST_RANK = 9
"""Digits of a pod rank that is read as a number."""

DEEPEST = 60
"""Levels of nested mappings and lists in an object. Real ones have about 20. Copying a few hundred exceeds Python's own limit."""


def size_problem(pods: int, ranks_per_pod: int) -> str:
    """Returns why a job is too large. Empty: it is not. To be called before anything of that size is built."""
    if pods > MOST_PODS:
        return f"{pods} pods are too many: a job has at most {MOST_PODS} pods"
    if pods * ranks_per_pod > MOST_RANKS:
        return f"{pods} pods of {ranks_per_pod} ranks each are too many: a job has at most {MOST_RANKS} ranks"
    return ""
