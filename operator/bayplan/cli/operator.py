"""`bayplan operator`: assemble the process from the engine, the caches and the reconcilers."""

import asyncio
import os
import socket
import uuid
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from bayplan.api import names
from bayplan.cli.configuration import ConfigurationError, OperatorConfiguration, load_configuration
from bayplan.cli.logs import set_up_logging
from bayplan.cluster.cache import P, Store
from bayplan.cluster.client import ApiClient
from bayplan.cluster.clock import Clock, SystemClock
from bayplan.cluster.controller import Controller
from bayplan.cluster.credentials import Credentials, CredentialsError, load_access
from bayplan.cluster.events import EventRecorder, Subject
from bayplan.cluster.lease import Elector
from bayplan.cluster.listing import Project
from bayplan.cluster.loop import run
from bayplan.cluster.metrics import Metrics
from bayplan.cluster.reflector import Reflector
from bayplan.cluster.resources import (
    CAPACITY_PLANS,
    CONTROLLER_REVISIONS,
    INFERENCE_MODELS,
    NODES,
    PDBS,
    RESOURCE_QUOTAS,
    ROLLOUTS,
    SERVICES,
    Resource,
)
from bayplan.cluster.resync import Resync
from bayplan.cluster.runtime import Runtime
from bayplan.cluster.servertime import ServerTime
from bayplan.reconcile.capacityplan.reconciler import CapacityPlanReconciler
from bayplan.reconcile.capacityplan.view import plan_store, view_plan
from bayplan.reconcile.fleet import Fleet, NodeView, node_store, pod_store, view_node
from bayplan.reconcile.gateways import Gateways, gateway_store, view_gateway
from bayplan.reconcile.inferencemodel.children import ChildWriter, child_store, view_child
from bayplan.reconcile.inferencemodel.evidence import MeasuredCaches
from bayplan.reconcile.inferencemodel.reconciler import InferenceModelReconciler
from bayplan.reconcile.inferencemodel.view import ModelView, view_model
from bayplan.reconcile.nodereports import NODE_VALUE_IGNORED, NodeReports
from bayplan.reconcile.pods import view_pod
from bayplan.reconcile.ports import Named
from bayplan.reconcile.qualityruns import QualityRuns
from bayplan.reconcile.quotas import QuotaView, view_quota
from bayplan.reconcile.rollout.reconciler import RolloutReconciler
from bayplan.reconcile.rollout.stored import seconds_of
from bayplan.reconcile.rollout.view import rollout_store, view_rollout
from bayplan.telemetry.engine import HttpEngine
from bayplan.telemetry.prompts import HttpPrompts

OURS = f"{names.APP_MANAGED_BY}={names.MANAGED_BY}"
CONTROLLER = names.EVENT_COMPONENT


class KindEvents:
    """Events about the objects of one kind, written in the background."""

    def __init__(self, recorder: EventRecorder, resource: Resource) -> None:
        self._recorder = recorder
        self._resource = resource

    def emit(self, view: Named, *, reason: str, message: str, warning: bool) -> None:
        """Record one event."""
        subject = Subject(resource=self._resource, key=view.key, uid=view.uid)
        self._recorder.record(subject, "Warning" if warning else "Normal", reason, message)


def _tell_of_node(recorder: EventRecorder, view: NodeView, fact: str) -> None:
    recorder.record(Subject(resource=NODES, key=view.key, uid=view.uid), "Warning", NODE_VALUE_IGNORED, fact)


async def run_operator(
    configuration: OperatorConfiguration,
    *,
    credentials: Credentials,
    namespace: str,
    identity: str,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
    clock: Clock | None = None,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> int:
    """Run the operator until it is stopped or has to end; return the exit code.

    `now` is the machine's date, which counts until the API server has told its own; `clock` drives Lease, queue and
    streams, `sleep` paces the scrapes of engines.
    """
    clock = clock or SystemClock()
    server_time = ServerTime(clock, local=now)
    now = server_time.now
    times = configuration.api_server.times()
    metrics = Metrics()
    engine = HttpEngine(aliases=configuration.telemetry.aliases())
    demand = configuration.telemetry.source(clock=clock.time, now=now)
    counts = configuration.telemetry.counts(now=now)
    prompts = HttpPrompts()
    async with ApiClient(
        credentials,
        clock=clock,
        timeout_seconds=times.request,
        on_request=metrics.request_made,
        on_date=server_time.observe,
    ) as client:
        elector = Elector(
            client,
            namespace=namespace,
            name=names.OPERATOR_LEASE,
            identity=identity,
            times=configuration.leader_election.times(),
            clock=clock,
            now=now,
        )
        writer = client.fenced(elector.is_held)
        models: Store[ModelView] = Store(INFERENCE_MODELS)
        plans = plan_store()
        nodes, pods = node_store(), pod_store()
        quotas: Store[QuotaView] = Store(RESOURCE_QUOTAS)
        services, budgets, revisions = (child_store(r) for r in (SERVICES, PDBS, CONTROLLER_REVISIONS))
        fleet = Fleet(
            nodes=nodes,
            pods=pods,
            is_ours=lambda uid: bool(uid) and models.by_uid(uid) is not None,
            now=now,
            limits=configuration.fleet_limits(),
            gpus=configuration.stated_gpus(),
        )
        rollouts = rollout_store()
        gateway_leases = gateway_store()
        gateways = Gateways(gateway_leases, pods, home=namespace, clock=clock.time)
        children = ChildWriter(writer, services=services, budgets=budgets, revisions=revisions)
        metrics.collect_from(MeasuredCaches(revisions))
        recorder = EventRecorder(client, controller=CONTROLLER, instance=identity, clock=clock, now=now)
        reconciler = InferenceModelReconciler(
            writer,
            models=models,
            fleet=fleet,
            quotas=quotas,
            children=children,
            rollouts=rollouts,
            plans=plans,
            engine=engine,
            metrics=demand,
            gateways=gateways,
            events=KindEvents(recorder, INFERENCE_MODELS),
            settings=configuration.reconcile_settings(),
            now=now,
            clock=clock.time,
            sleep=sleep,
        )
        controller = Controller(
            names.INFERENCEMODEL_KIND,
            reconciler.reconcile,
            keys=models.keys,
            urgent=reconciler.is_behind,
            workers=configuration.workers,
            clock=clock,
            observer=metrics.of_controller(names.INFERENCEMODEL_KIND),
            queue_observer=metrics.of_queue(names.INFERENCEMODEL_KIND),
        )
        reconciler.queue = controller
        staged = RolloutReconciler(
            writer,
            rollouts=rollouts,
            models=models,
            fleet=fleet,
            quotas=quotas,
            children=children,
            gateways=gateways,
            leases=gateway_leases,
            counts=counts,
            engine=engine,
            quality=QualityRuns(prompts, now_seconds=lambda: seconds_of(now()), sleep=sleep),
            events=KindEvents(recorder, ROLLOUTS),
            settings=configuration.reconcile_settings(),
            now=now,
            sleep=sleep,
        )
        promoter = Controller(
            names.ROLLOUT_KIND,
            staged.reconcile,
            keys=rollouts.keys,
            urgent=staged.is_behind,
            workers=configuration.workers,
            clock=clock,
            observer=metrics.of_controller(names.ROLLOUT_KIND),
            queue_observer=metrics.of_queue(names.ROLLOUT_KIND),
        )
        staged.queue = promoter
        capacity = CapacityPlanReconciler(
            writer,
            plans=plans,
            models=models,
            rollouts=rollouts,
            fleet=fleet,
            quotas=quotas,
            topology=configuration.topology,
            group_limits=configuration.reconcile_settings().group_limits,
            events=KindEvents(recorder, CAPACITY_PLANS),
            now=now,
        )
        planner = Controller(
            names.CAPACITYPLAN_KIND,
            capacity.reconcile,
            keys=plans.keys,
            urgent=capacity.is_behind,
            workers=1,
            clock=clock,
            observer=metrics.of_controller(names.CAPACITYPLAN_KIND),
            queue_observer=metrics.of_queue(names.CAPACITYPLAN_KIND),
        )
        capacity.queue = planner
        reports = NodeReports(nodes, lambda view, fact: _tell_of_node(recorder, view, fact))
        reporter = Controller(NODES.kind, reports.reconcile, keys=reports.keys, workers=1, clock=clock)
        reports.enqueue = reporter.enqueue
        topology = configuration.topology

        def reflect(store: Store[P], project: Project[P], label_selector: str | None = None) -> Reflector[P]:
            return Reflector(
                client,
                store,
                project,
                label_selector=label_selector,
                clock=clock,
                watch_seconds=times.watch,
                idle_seconds=times.idle,
            )

        runtime = Runtime(
            client,
            elector=elector,
            resyncs=[
                Resync(client, models, view_model, clock=clock, period_seconds=times.resync),
                Resync(client, rollouts, view_rollout, clock=clock, period_seconds=times.resync),
                Resync(client, plans, view_plan, clock=clock, period_seconds=times.resync),
            ],
            reflectors=[
                reflect(nodes, lambda raw: view_node(raw, topology)),
                reflect(pods, view_pod),
                reflect(quotas, view_quota),
                reflect(services, view_child, OURS),
                reflect(budgets, view_child, OURS),
                reflect(revisions, view_child, OURS),
                reflect(gateway_leases, view_gateway, names.LABEL_GATEWAY),
            ],
            controllers=[controller, promoter, planner, reporter],
            recorder=recorder,
            metrics=metrics,
            host=configuration.listen.address,
            port=configuration.listen.port,
            times=times,
            clock=clock,
        )
        try:
            return await runtime.run()
        finally:
            await staged.close()
            await reconciler.close()
            await engine.close()
            await demand.close()
            await counts.close()
            await prompts.close()


def operator(
    config: Annotated[
        Path | None, typer.Option(help="YAML file with the operator's configuration; defaults without it.")
    ] = None,
    kubeconfig: Annotated[
        Path | None,
        typer.Option(help="Kubeconfig; without it $KUBECONFIG, then the pod's own service account."),
    ] = None,
    namespace: Annotated[
        str, typer.Option(envvar="POD_NAMESPACE", help="Namespace of the leader election Lease.")
    ] = "bayplan-system",
) -> None:
    """Run the operator: place, warm and keep every InferenceModel of the cluster."""
    try:
        configuration = load_configuration(config)
    except ConfigurationError as error:
        typer.echo(f"bayplan operator: {error}", err=True)
        raise typer.Exit(2) from None
    set_up_logging(configuration.logging)
    path = str(kubeconfig) if kubeconfig is not None else None
    credentials = Credentials(lambda: load_access(kubeconfig=path))
    identity = f"{os.environ.get('POD_NAME') or socket.gethostname()}_{uuid.uuid4().hex[:8]}"
    try:
        code = run(run_operator(configuration, credentials=credentials, namespace=namespace, identity=identity))
    except CredentialsError as error:
        typer.echo(f"bayplan operator: {error}", err=True)
        code = 2
    raise typer.Exit(code)
