"""Labels, annotations and environment variables that components of the cluster read: the Kubernetes contract, and ours."""

SUB_HEALTHY_STRATEGY = "subHealthyStrategy"
"""Label of a job: ignore, graceExit, forceExit, hotSwitch."""
RECOVER_STRATEGY = "recover-strategy"
"""Annotation of a job: the strategies that its owner allows, separated by commas."""
PROCESS_RECOVER_ENABLE = "process-recover-enable"
POD_RESCHEDULING = "pod-rescheduling"
"""Label of a job, `on` or `off`: if no cheaper mode helps, only faulty pods are replaced. The processes of all other pods
start again in their pods."""
FAULT_RETRY_TIMES = "fault-retry-times"
"""Label of a job: number of restarts, 0 to 100, after a pod or process failed although no fault of a node or device is known.
Without it only their frequency is limited. Without it the Ascend Operator fails an AscendJob for good with the first failed
pod."""
PLATFORM_STRATEGY = "ProcessRecoverStrategy"
"""Annotation of a job: if it is present, a platform decides, and writes the strategy into it: `retry`, `recover`, `dump` or
`exit`. Volcano then deletes no pods."""
PLATFORM_CONFIRM = "ProcessConfirmFault"
"""Annotation of a PodGroup: faults, for the platform, as `rank:type` separated by commas."""
PLATFORM_RESULT = "ProcessResultFault"
"""Annotation of a PodGroup, by the platform: faults that it knows, in the same form. It may be empty."""
RANK_TABLE_READY = "RankTableReady"
"""Annotation of a PodGroup, by the platform: `true` if the rank table is ready for a recovery."""
RECOVER_STATUS = "ProcessRecoverStatus"
"""Annotation of a PodGroup: how the last strategy ended."""
WAIT_RESCHEDULE = "wait-reschedule-timeout"
"""Annotation of a job: the limit `replacementScheduled` in seconds, 30 to 270."""
HOT_RESET = "hotReset"
"""Label or annotation of a job, or environment variable of its pods: with `1` the job is only restarted as a whole. It asks for
graceful fault tolerance, which has reached its end of life and excludes recoveries of processes."""
FRAMEWORK = "framework"
RANK_INDEX = "hccl/rankIndex"
"""Annotation of a pod: its pod rank."""
POD_TYPE = "podType"
"""Annotation of a pod: `backup` until it has taken over, `standby` while it has no rank."""
BACKUP_SOURCE = "backupSourcePodName"
JOB_NAME = "training.kubeflow.org/job-name"
REPLICA_TYPE = "training.kubeflow.org/replica-type"
"""Label of a pod: `worker` or `manager`."""

JOB_ID = "rekindle.io/job-id"
"""Label of a pod: the UID of its job, if the pod's controller does not set it."""
BARE_JOB_NAME = "rekindle.io/job-name"
"""Label of pods without a controller: the name of the job that they form together."""
MANAGER_OF = "rekindle.io/manager-of"
"""Label of a manager's pod that was created by another controller than the job's: the name of the job."""
PODS = "rekindle.io/pods"
"""Annotation of pods without a controller: the number of pods of their job."""
RANKS_PER_POD = "rekindle.io/ranks-per-pod"
"""Annotation of a job: ranks in each pod. By default the number of accelerators of a pod."""
TRAINING_SIDE = "rekindle.io/training-side"
"""Annotation of a job: name of its training side."""
LIMITS = "rekindle.io/limits"
"""Annotation of a job: its own limits, as a mapping in YAML."""
TOPOLOGY = "rekindle.io/topology"
"""Annotation of a job: label of nodes whose value must be the same for the node of a backup pod and that of the old pod."""
MODE = "rekindle.io/mode"
"""Label of a namespace: `observe` or `active`."""
MANAGED = "rekindle.io/managed"
"""Label of a job: `true` registers the job although it has none of the contract's labels."""
STANDBYS = "rekindle.io/standbys"
"""Annotation of a job: number of standbys."""
STANDBY_OF = "rekindle.io/standby-of"
"""Label of a standby: the UID of its job."""
TAKEN_AS = "rekindle.io/taken-as"
"""Annotation of a standby that was given a rank: the name that a new backup pod would have had."""
GENERATION = "rekindle.io/generation"
"""Label of a pod: number of the restart of the whole job that created it; `0` before the first restart."""
OBJECT_GENERATION = "rekindle.io/object-generation"
"""Annotation of a pod of a `TrainingJob`: the `metadata.generation` of the object from which the pod was created."""
RESTARTS = "rekindle.io/restarts"
"""Annotation of a manager's pod: number of consecutive failures of manager pods before it."""
CAPABILITIES = "rekindle.io/capabilities"
"""Annotation of a job: capabilities of its training side, separated by commas."""
IGNORE_RULES = "rekindle.io/ignore-rules"
"""Annotation of a job: names of detection rules that do not apply to it, separated by commas."""
FILTER_CODES = "huawei.com/schedule.filter.faultCode"
FILTER_LEVELS = "huawei.com/schedule.filter.faultLevel"
"""Annotations of a job: fault codes, or levels, that are tolerated for some seconds, such as `8C084E00:120`."""
MANAGER_LOST = "rekindle.io/manager-lost"
"""Annotation of a job: action when its manager is lost for good, `leave` or `restart`."""
MEMORY = "rekindle.io/memory"
"""Annotation of a job, for internal use: state that a later workflow of the job needs if the running one is lost."""
RECOVERED_BY = "rekindle.io/recovered-by"
"""Annotation of a job: installation that recovers it, as namespace and name of the installation's Lease."""
STOPPED = "rekindle.io/stopped"
"""Annotation of a job, for internal use: `yes` while a restart suspends the job, `resumed` if another party has resumed it."""
RECOVERING = "rekindle.io/recovering"
"""Annotation of a job, for display: the mode that is running."""
LAST_VERDICT = "rekindle.io/last-verdict"
"""Annotation of a job, for display: result of the last incident."""
DOWNGRADED = "rekindle.io/sub-health-downgraded"
"""Annotation of a job: reason why the sub-health policy became `ignore`."""
NODE_HEALTHY = "NodeHealthyStatus"
"""Annotation of a node: Volcano does not use a node with the value `UnHealthy`."""
HEALTH = "rekindle.io/health"
"""Annotation of a node, set by people: `sick` or `broken`, optionally with `: reason`, or `well`, which overrides every rule."""
DEVICES = "rekindle.io/devices"
"""Annotation of a node: a line for each device with its local id, UUID and PCI address, separated by commas."""
SERIAL_NUMBER = "product-serial-number"
"""Annotation of a node, set by NodeD: serial number by which public faults may name the node."""
ISOLATED = "rekindle.io/isolated"
"""Annotation of a node, for internal use: reason of its isolation by a stress test, or after two incidents. To release the
node, remove this and `NodeHealthyStatus`."""

DRAIN = "rekindle.io/drain"
"""Annotation of a job: action for its pods on a drained node that cannot move away at once, `wait`, `reschedule` or `let-go`."""

NO_SPARE = "rekindle.io/no-spare"
"""Annotation of a job: action if a sub-healthy pod finds no spare node, or another job gets it, `ignore` or `wait`."""

PRIORITY = "rekindle.io/priority"
"""Annotation of a job: its priority where spare nodes are fewer than recoveries need, an integer. By default that of its pods."""

APPROVAL = "rekindle.io/approval"
"""Annotation of a job: modes that need the approval of a person, separated by commas. Each may name the action if nobody answers
in time, `deny` (the default) or `approve`: `process-rescheduling, job-rescheduling:approve`."""

ELASTIC = "rekindle.io/elastic"
"""Annotation of a job: least number of replicas with which it trains, the pods of a replica, by default one, and the time in
which a spare node may be found first: `2; wait=60s`, `2; pods=4; wait=60s`."""

GIVEN_UP = "rekindle.io/given-up"
"""Annotation of a job, for display: reason why nothing more is done, until `rekindle retry` or until the job trains."""

LABELS = (SUB_HEALTHY_STRATEGY, PROCESS_RECOVER_ENABLE, POD_RESCHEDULING, FRAMEWORK, MANAGED)
ANNOTATIONS = (
    RECOVER_STRATEGY,
    CAPABILITIES,
    LIMITS,
    TRAINING_SIDE,
    RANKS_PER_POD,
    TOPOLOGY,
    MANAGER_LOST,
    STANDBYS,
    DOWNGRADED,
    IGNORE_RULES,
    DRAIN,
    NO_SPARE,
    PRIORITY,
    APPROVAL,
    ELASTIC,
)
"""Annotations that the owner of a job may set. A key that is similar to one of them is reported as a typing error."""

HOT_RESET_ON = "1"
"""Value of `hotReset` for graceful fault tolerance. The others are about idle devices and inference."""

ENV_JOB_ID = "MINDX_TASK_ID"
ENV_GATEWAY_HOST = "MINDX_SERVER_IP"
ENV_GATEWAY_PORT = "REKINDLE_GATEWAY_PORT"
ENV_POD_IP = "POD_IP"
ENV_MASTER_ADDR = "MASTER_ADDR"
ENV_MASTER_PORT = "MASTER_PORT"
"""Address and port on which the job's manager listens for its ranks. They are the same for all pods and the job's whole life."""
ENV_POD_ROLE = "REKINDLE_POD_ROLE"
ENV_POD_RANK = "REKINDLE_POD_RANK"
ENV_POD_NAME = "REKINDLE_POD_NAME"
ENV_POD_UID = "REKINDLE_POD_UID"
ENV_NODE = "REKINDLE_NODE"
ENV_TOKEN_FILE = "REKINDLE_TOKEN_FILE"
"""Path of the token of a manager of Rekindle's training side."""
ENV_JOB_DIR = "REKINDLE_JOB_DIR"
"""Directory that all pods of the job share: checkpoints/, steps/, final/."""
ENV_LINKS = "REKINDLE_LINKS"
"""Network interfaces of the pod for the traffic of its ranks, separated by a comma: the first link, then the backup link."""
ENV_GENERATION = "REKINDLE_GENERATION"
"""Number of restarts of the whole job; the label `rekindle.io/generation`."""

TOKEN_AUDIENCE = "rekindle-gateway"
"""Audience of a pod's token. Such a token can only be used to report for the pod's job."""
TOKEN_PATH = "/var/run/secrets/rekindle.io"
TOKEN_NAME = "token"
"""Mount path and file name of the token in the container of a manager."""
TOKEN_SECONDS = 3600
"""Lifetime of a token in seconds. The kubelet replaces a token after four fifths of it."""
