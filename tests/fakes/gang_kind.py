"""A fictitious kind of job: its row. docs/development.md lists what a real one needs besides."""

from pydantic import StrictBool

from activities.clusters.kubernetes import schemas
from activities.clusters.kubernetes.kind import Indexing, Kind, Template
from activities.clusters.kubernetes.objects import foreign
from activities.clusters.kubernetes.pod_ownership import ByLabels
from activities.clusters.kubernetes.restarting import Suspending


class Spec(schemas.Shape):
    size: schemas.Count
    template: schemas.Template
    paused: StrictBool = False


GANG = Kind(
    name="Gang",
    api="/apis/gangs.example.com/v1",
    plural="gangs",
    pod_label="gangs.example.com/gang",
    shape=schemas.Job[Spec],
    templates=lambda spec: [Template(spec["template"], int(spec["size"]))],
    read=foreign,
    restart=Suspending(("paused",)),
    count=ByLabels(("gangs.example.com/uid",)),
    indexing=Indexing(("gangs.example.com/member",)),
)
