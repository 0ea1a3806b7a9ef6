"""Every name on which the training side and the cluster agree; read by `environment.py` and by the launcher, which sets some."""

JOB_ID = "MINDX_TASK_ID"
GATEWAY_HOST = "MINDX_SERVER_IP"
GATEWAY_PORT = "REKINDLE_GATEWAY_PORT"
POD_IP = "POD_IP"
MASTER_ADDR = "MASTER_ADDR"
MASTER_PORT = "MASTER_PORT"
"""Where the job's manager listens for its ranks; the same for every pod, as long as the job lives."""
POD_ROLE = "REKINDLE_POD_ROLE"
POD_RANK = "REKINDLE_POD_RANK"
POD_NAME = "REKINDLE_POD_NAME"
POD_UID = "REKINDLE_POD_UID"
NODE = "REKINDLE_NODE"
JOB_DIR = "REKINDLE_JOB_DIR"
"""A directory that all pods of the job share: checkpoints/, steps/, final/."""
JOB_GENERATION = "REKINDLE_GENERATION"
"""Restarts of the whole job, set by the cluster: "0" in its first life. Not the generation of the communicator."""

RANK = "RANK"
LOCAL_RANK = "LOCAL_RANK"
WORLD_SIZE = "WORLD_SIZE"
LOCAL_WORLD_SIZE = "LOCAL_WORLD_SIZE"

LAUNCHER = "REKINDLE_LAUNCHER"
"""Set by `rekindle-train` for the processes that it starts: torchrun sets the other variables too, and has no manager."""

PROCESS = "REKINDLE_PROCESS"
"""A name for this process that no other process of the job has; the launcher's."""
OWN_STATE = "REKINDLE_OWN_STATE"
"""Descriptor of the memory in which a rank leaves what only it has, for the process that follows it; the launcher's."""

LINKS = "REKINDLE_LINKS"
"""Network interfaces of the pod for collectives: the first link and, behind a comma, the backup; not set: there is no second."""

CHECKPOINT_EVERY = "REKINDLE_CHECKPOINT_EVERY"
"""Steps between two periodic checkpoints; 0 means none."""
REBUILD_TIMEOUT = "REKINDLE_REBUILD_TIMEOUT"
"""Seconds from the order to migrate until one more step is complete on all ranks; beyond it the migration has failed."""
ORDER_TIMEOUT = "REKINDLE_ORDER_TIMEOUT"
"""Seconds that a pause, or a fault that was reported, waits for the first order; beyond it training goes on by itself."""
WITHOUT_ORDERS = "REKINDLE_WITHOUT_ORDERS"
"""What a manager does about a fault when no order comes in that time."""
DECIDE, WAIT = "decide", "wait"
INJECT = "REKINDLE_INJECT"
"""Faults for demonstrations and tests, a JSON list; see `injection.py`."""
TAMPER = "REKINDLE_TAMPER"
"""For tests that prove the proof: `optimizer`, `bit` or `rng` is corrupted in a migration, and the comparison must notice."""

WORKER, BACKUP, STANDBY, MANAGER = "worker", "backup", "standby", "manager"

DEFAULT_GATEWAY_PORT = 8899
DEFAULT_MASTER_PORT = 29500
