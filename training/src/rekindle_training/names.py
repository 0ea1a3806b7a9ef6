"""Names of the environment variables that the training side and the cluster share. Read by `environment.py` and the launcher.

The launcher also sets some of them.
"""

JOB_ID = "MINDX_TASK_ID"
"""Id of the job. A controller that knows the id sets it; any other job's manager gets it from the gateway, by its token."""
GATEWAY_HOST = "MINDX_SERVER_IP"
"""Address of the gateway. Where this or `JOB_ID` is set, the job has a control plane."""
GATEWAY_PORT = "REKINDLE_GATEWAY_PORT"
POD_IP = "POD_IP"
MASTER_ADDR = "MASTER_ADDR"
MASTER_PORT = "MASTER_PORT"
"""Port on which the job's manager listens for its ranks. It is the same for all pods during the whole life of the job."""
POD_ROLE = "REKINDLE_POD_ROLE"
POD_RANK = "REKINDLE_POD_RANK"
INDEX = "JOB_COMPLETION_INDEX"
"""Index of a pod in its Job; set by the Job controller of Kubernetes."""
JOB_INDEX = "REKINDLE_JOB_INDEX"
"""Index of a pod's Job in its JobSet, where several of them have ranks."""
PODS_PER_JOB = "REKINDLE_PODS_PER_JOB"
"""Number of pods of each such Job."""
POD_NAME = "REKINDLE_POD_NAME"
POD_UID = "REKINDLE_POD_UID"
NODE = "REKINDLE_NODE"
TOKEN_FILE = "REKINDLE_TOKEN_FILE"
"""File of the token by which the control plane identifies the manager's pod. If the file is missing, no token is sent."""
JOB_DIR = "REKINDLE_JOB_DIR"
"""Directory that all pods of the job share: checkpoints/, steps/, final/."""
JOB_GENERATION = "REKINDLE_GENERATION"
"""Number of restarts of the whole job, set by the cluster: "0" in its first life. Not the generation of the communicator."""

RANK = "RANK"
LOCAL_RANK = "LOCAL_RANK"
WORLD_SIZE = "WORLD_SIZE"
LOCAL_WORLD_SIZE = "LOCAL_WORLD_SIZE"

LAUNCHER = "REKINDLE_LAUNCHER"
"""Variable that `rekindle-train` sets for its processes. torchrun sets the other variables too, but has no manager."""

MANAGER = "REKINDLE_MANAGER"
"""Address of the job's manager, `host:port`. Set by the launcher, because a script may set MASTER_ADDR itself."""
PROCESS = "REKINDLE_PROCESS"
"""Name of this process, unique within the job. Set by the launcher."""
OWN_STATE_MEMORY = "rekindle-"
"""Beginning of the name of a rank's memory in /proc."""
OWN_STATE = "REKINDLE_OWN_STATE"
"""Descriptor of the memory in which a rank leaves the state that only it has, for its successor. Set by the launcher."""

SNAPSHOTS_MEMORY = "rekindle-snapshots-"
"""Beginning of the name of a rank's memory of snapshots in /proc."""
SNAPSHOTS = "REKINDLE_SNAPSHOTS"
"""Descriptor of the memory of a rank's snapshots, and of those that it keeps for another rank. Set by the launcher."""

POD_MEMORY = "REKINDLE_POD_MEMORY"
"""Descriptor of the memory that the ranks of a pod share to vote. Set by the launcher."""

LINKS = "REKINDLE_LINKS"
"""Network interfaces of the pod for collectives: the first link and, after a comma, the backup link. Not set: there is no
backup link.
"""

CHECKPOINT_EVERY = "REKINDLE_CHECKPOINT_EVERY"
"""Steps between two periodic checkpoints; 0 means none."""
SNAPSHOT_EVERY = "REKINDLE_SNAPSHOT_EVERY"
"""Steps between two snapshots in memory of shards that one rank alone holds. Not set: no snapshots are taken."""
RACK = "REKINDLE_RACK"
"""Rack of the pod's node, or another label of the topology. Where all pods have it, a snapshot is copied to another rack."""
REBUILD_TIMEOUT = "REKINDLE_REBUILD_TIMEOUT"
"""Seconds from the order to migrate until one more step is complete on all ranks; beyond it the migration has failed."""
ORDER_TIMEOUT = "REKINDLE_ORDER_TIMEOUT"
"""Seconds that a pause, or a fault that was reported, waits for the first order; beyond it training goes on by itself."""
WITHOUT_ORDERS = "REKINDLE_WITHOUT_ORDERS"
"""Reaction of a manager to a fault if no order arrives within `ORDER_TIMEOUT`: it decides by itself, or it waits."""
DECIDE, WAIT = "decide", "wait"
STRESS_SECONDS = "REKINDLE_STRESS_SECONDS"
"""Approximate number of seconds that each check of a stress test takes."""
INJECT = "REKINDLE_INJECT"
"""Faults for demonstrations and tests, a JSON list; see `injection.py`."""
TRACE = "REKINDLE_TRACE"
"""Folder in which each rank writes digests of its state after each step; set by a drill."""
DRILL_STEPS = "REKINDLE_DRILL_STEPS"
"""Step after which a drill ends the script, counted from 1 over the whole training."""
TAMPER = "REKINDLE_TAMPER"
"""State that is corrupted in a migration: `optimizer`, `bit` or `rng`. Used by tests that verify that the comparison of states
detects this.
"""

WORKER, BACKUP, STANDBY, MANAGER = "worker", "backup", "standby", "manager"

DEFAULT_GATEWAY_PORT = 8899
DEFAULT_MASTER_PORT = 29500
DEFAULT_TOKEN_FILE = "/var/run/secrets/rekindle.io/token"
