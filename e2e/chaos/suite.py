"""All of it with real operator processes on a control plane of its own: campaigns, kills at writes, pairs."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import psutil

from e2e.chaos.campaign import ROWS, CampaignReport, run_campaign
from e2e.chaos.life import Patience, Reference, play_undisturbed
from e2e.chaos.matrix import MatrixReport, one_per_kind, points_of, rounds_of, run_matrix
from e2e.chaos.operators import Keeper, Process, Processes
from e2e.chaos.pairs import Disturbance, PairReport, PausedLeader, StolenLease, play_pair
from e2e.chaos.scope import Scope
from e2e.chaos.story import Story
from e2e.chaos.world import Ground, World
from e2e.localcluster import local_cluster
from e2e.scenarios.stack import NAMESPACE

MATRIX, PAIRS = "crash-matrix", "pairs"
PARTS = (*ROWS, MATRIX, PAIRS)
PATIENCE = Patience(converge=180.0, rest=2.5)
"""A process takes seconds to start, and its successor waits for the end of its Lease."""
REST_SECONDS = 5.0
WORLDS = 2
NODE_GRACE_SECONDS = 86400
Say = Callable[[str], None]
Make = Callable[[World, tuple[Keeper, Keeper]], Disturbance]


@dataclass(slots=True)
class StoryReport:
    """What came of one story."""

    story: str
    campaign: CampaignReport = field(default_factory=CampaignReport)
    matrix: MatrixReport | None = None
    pairs: list[PairReport] = field(default_factory=list)

    def problems(self) -> list[str]:
        """Return each failure with the command that repeats it."""
        again = f"python -m e2e.chaos --story {self.story} --only"
        found = [f"{problem} [{life.command}]" for life in self.campaign.lives for problem in life.problems]
        found += [f"its fault never happened [{again} {row}]" for row in self.campaign.idle_rows()]
        if self.matrix is not None:
            found += [f"{text} [{again} {MATRIX}]" for text in self.matrix.divergences]
            found += [f"no {text} [{again} {MATRIX}]" for text in sorted(self.matrix.unhit_kinds())]
        found += [f"{pair.name}: {text} [{again} {PAIRS}]" for pair in self.pairs for text in pair.problems]
        return found

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain values."""
        matrix = self.matrix
        return {
            "story": self.story,
            "lives": [asdict(life) | {"injected": dict(life.injected)} for life in self.campaign.lives],
            "matrix": None
            if matrix is None
            else {
                "points": matrix.points,
                "hit": len(matrix.hit),
                "lives": matrix.lives,
                "crashes": matrix.crashes,
                "by_kind": matrix.kinds,
                "divergences": matrix.divergences,
            },
            "pairs": [asdict(pair) for pair in self.pairs],
            "problems": self.problems(),
        }


@asynccontextmanager
async def own_ground() -> AsyncIterator[Ground]:
    """Start a control plane with room for the worlds of a suite."""
    async with (
        local_cluster(name="chaos", node_monitor_grace_seconds=NODE_GRACE_SECONDS) as cluster,
        Ground.on(cluster, worlds=WORLDS) as ground,
    ):
        yield ground


def processes(ground: Ground) -> Processes:
    """Return what starts operator processes on a ground."""
    return Processes(ground.cluster.folder, ground.token)


async def play_reference(ground: Ground, story: Story) -> Reference:
    """Play a story undisturbed, with a real process."""
    async with ground.world(0, processes(ground)) as world:
        return await play_undisturbed(world, story, patience=PATIENCE)


async def run_story(
    ground: Ground, story: Story, *, parts: Sequence[str], seeds: Sequence[int], advance: Say
) -> StoryReport:
    """Run the chosen parts on one story. Raises DivergedError when the undisturbed life fails already."""
    advance("undisturbed")
    reference = await play_reference(ground, story)
    report = StoryReport(story.name)
    rows = [row for row in ROWS if row in parts]
    factory = processes(ground)
    report.campaign = await run_campaign(
        ground,
        reference,
        rows=rows,
        seeds=seeds,
        factory=lambda _: factory,
        patience=PATIENCE,
        rest_seconds=REST_SECONDS,
        advance=lambda life: advance(f"{life.row} seed {life.seed}: {'; '.join(life.problems) or 'converged'}"),
    )
    if MATRIX in parts:
        report.matrix = await kill_at_each_kind(ground, reference, advance=advance)
    if PAIRS in parts:
        report.pairs = await play_pairs(ground, reference, advance=advance)
    return report


async def kill_at_each_kind(ground: Ground, reference: Reference, *, advance: Say) -> MatrixReport:
    """SIGKILL a process before and after the first write of each kind."""
    factory = processes(ground)
    return await run_matrix(
        ground,
        reference,
        rounds_of(one_per_kind(points_of(reference)), spread=3),
        factory=lambda _: factory,
        patience=PATIENCE,
        advance=lambda report: advance(f"{MATRIX}: {report.lives} lives, {report.crashes} kills"),
    )


async def play_pairs(ground: Ground, reference: Reference, *, advance: Say) -> list[PairReport]:
    """Play a story with two processes: their Lease stolen, the leader paused, and both leading."""
    makes: list[tuple[str, Make]] = [
        ("stolen lease", StolenLease),
        ("paused leader", lambda world, keepers: PausedLeader(world, keepers, pause=pause)),
        ("both lead", Disturbance),
    ]
    reports = []
    for name, make in makes:
        async with ground.world(0) as world:
            first = await world.keep(processes(ground), name="first")
            own = Scope(world.namespace, world.scope.node_selector, lease_namespace=NAMESPACE)
            second = await world.keep(processes(ground), name="second", scope=own if name == "both lead" else None)
            disturbance = make(world, (first, second))
            report = await play_pair(name, world, reference, disturbance, patience=PATIENCE, rest_seconds=REST_SECONDS)
        if name == "both lead" and min(report.writes.values()) == 0:
            report.problems.append("one of the two never wrote: they did not both lead")
        if name != "both lead" and report.disturbances == 0:
            report.problems.append("nothing was disturbed")
        reports.append(report)
        advance(f"{name}: {'; '.join(report.problems) or 'converged'}")
    return reports


def pause(keeper: Keeper) -> Callable[[], None]:
    """SIGSTOP a keeper's operator process; return what lets it go on."""
    assert isinstance(keeper.operator, Process)
    members = psutil.Process(keeper.operator.pid()).children(recursive=True)
    for member in members:
        member.suspend()

    def resume() -> None:
        for member in members:
            if member.is_running():
                member.resume()

    return resume
