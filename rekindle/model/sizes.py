"""How large a job and what is said of it may be. The product is made and tested for these sizes; what is larger is refused."""

MOST_PODS = 5_000
"""Pods with ranks of one job."""

MOST_RANKS = 10_000
"""Ranks of one job: what its training side reports of all of them still fits into one payload."""

MOST_STANDBYS = 16
"""Standbys of one job: what is seen of all of them still fits into one payload, beside everything else."""

LONGEST_NAME = 253
"""Characters of the name of an object, as Kubernetes has it."""

LONGEST_TEXT = 1_024
"""Characters of other texts that are kept: the value of a label or an annotation, a message."""

LONGEST_NOTE = 300
"""Characters of texts of which a job keeps many, such as the message of a fault."""

LONGEST_RANK = 9
"""Digits of a pod rank that is read as a number."""

DEEPEST = 60
"""Levels of mappings and lists in an object. Real ones have about 20; Python's own limit is met by copying a few hundred."""


def size_problem(pods: int, ranks_per_pod: int) -> str:
    """Why a job is too large; empty: it is not. The product is compared before anything of that size is built."""
    if pods > MOST_PODS:
        return f"{pods} pods are too many: a job has at most {MOST_PODS} pods"
    if pods * ranks_per_pod > MOST_RANKS:
        return f"{pods} pods of {ranks_per_pod} ranks each are too many: a job has at most {MOST_RANKS} ranks"
    return ""
