"""What engines reported of their KV cache against the plan, as a metric."""

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from bayplan.cluster.cache import Store
from bayplan.planning.layout.records import read_layouts
from bayplan.reconcile.inferencemodel.children import ChildView


class MeasuredCaches(Collector):
    """Reads the revisions' records at the moment of the scrape; a plan that holds within 3 % has no series."""

    def __init__(self, revisions: Store[ChildView]) -> None:
        self._revisions = revisions

    def collect(self) -> Iterator[Metric]:
        """Yield measured over planned KV cache blocks, by revision and GPU product."""
        ratio = GaugeMetricFamily(
            "bayplan_kv_cache_measured_ratio",
            "KV cache blocks that an engine reported over those that were planned",
            labels=["namespace", "model", "revision", "gpu_product"],
        )
        for child in self._revisions.values():
            for product, record in read_layouts(child.layouts).items():
                if record.blocks is not None and record.planned_blocks is not None:
                    model = child.key.name.removesuffix(f"-{child.revision}")
                    labels = [child.key.namespace, model, child.revision, product]
                    ratio.add_metric(labels, record.blocks / record.planned_blocks)
        yield ratio
