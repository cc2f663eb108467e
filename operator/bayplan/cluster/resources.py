"""The API resources that Bayplan reads and writes, and how their URLs are built."""

from dataclasses import dataclass
from typing import Final, NamedTuple
from urllib.parse import quote

from bayplan.api import names


class Key(NamedTuple):
    """Identity of an object within one resource; `namespace` is empty for cluster-scoped ones."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


@dataclass(frozen=True, slots=True)
class Resource:
    """One resource of the API server, named as in its URLs."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """Return `group/version`, or the bare version for the core group."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def exact_numbers(self) -> bool:
        """Whether fractional numbers are read as Decimal: true for our own kinds."""
        return self.group == names.GROUP

    def __str__(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def collection_path(self, namespace: str | None = None) -> str:
        """Return the URL path of the collection; without a namespace it spans all of them."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        if namespace and not self.namespaced:
            raise ValueError(f"{self} is cluster-scoped and takes no namespace, got {namespace!r}")
        if namespace:
            return f"{root}/namespaces/{quote(namespace, safe='')}/{self.plural}"
        return f"{root}/{self.plural}"

    def object_path(self, namespace: str, name: str, subresource: str | None = None) -> str:
        """Return the URL path of one object. An empty name would address the collection, so it raises ValueError."""
        if not name:
            raise ValueError(f"an object of {self} needs a name")
        if self.namespaced and not namespace:
            raise ValueError(f"{self} is namespaced: {name!r} needs a namespace")
        path = f"{self.collection_path(namespace or None)}/{quote(name, safe='')}"
        return f"{path}/{subresource}" if subresource else path


PODS: Final = Resource("", "v1", "pods", "Pod")
NODES: Final = Resource("", "v1", "nodes", "Node", namespaced=False)
SERVICES: Final = Resource("", "v1", "services", "Service")
CONFIG_MAPS: Final = Resource("", "v1", "configmaps", "ConfigMap")
NAMESPACES: Final = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
RESOURCE_QUOTAS: Final = Resource("", "v1", "resourcequotas", "ResourceQuota")
PDBS: Final = Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")
CONTROLLER_REVISIONS: Final = Resource("apps", "v1", "controllerrevisions", "ControllerRevision")
LEASES: Final = Resource("coordination.k8s.io", "v1", "leases", "Lease")
EVENTS: Final = Resource("events.k8s.io", "v1", "events", "Event")
INFERENCE_MODELS: Final = Resource(names.GROUP, names.VERSION, names.INFERENCEMODEL_PLURAL, names.INFERENCEMODEL_KIND)
ROLLOUTS: Final = Resource(names.GROUP, names.VERSION, names.ROLLOUT_PLURAL, names.ROLLOUT_KIND)
CAPACITY_PLANS: Final = Resource(names.GROUP, names.VERSION, names.CAPACITYPLAN_PLURAL, names.CAPACITYPLAN_KIND)
