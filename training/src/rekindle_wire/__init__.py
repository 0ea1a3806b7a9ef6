"""Generated code of the wire contract; `protos/generate.py` writes it."""

PROTOCOL = 4
"""Version of what `training.proto` says. It rises when an older peer would misunderstand a newer one."""

ATTEMPT = "rekindle-attempt"
"""Metadata of a status of ours, and of the result of a maintenance: the uuid of the order that it answers, for which the contract
has no field."""

JOB = "rekindle-job"
"""Metadata of the answer to `Init`: the id of the job, for a manager of ours that sent none."""

REPORT = "rekindle-report"
"""Metadata of each report of ours: its id, which is the same however often it is sent, and over whichever gateway."""

SPOKEN = "rekindle-protocol"
"""Metadata of `Init` of ours: the protocol that the manager speaks, and its release, such as `4 0.1.0`. Others send none."""

TRACE = "rekindle-trace"
"""Metadata of the answer to such a report, where the gateway exports traces: the span of the recovery, as W3C's `traceparent`."""

INFO = "rekindle-info-bin"
"""Metadata of such a result of ours: what was done, or which rank failed and why, in words (UTF-8)."""


def protocol_problem(spoken: int) -> str:
    """Returns the problem with a peer's protocol version. Empty: the version is ours. 0 stands for a peer that sends none."""
    if spoken == PROTOCOL:
        return ""
    release = "install one release of rekindle-recovery-training everywhere"
    return f"protocol: {spoken} is not spoken here, accepted is {PROTOCOL}: {release}"
