"""A node's directory with a log that the real core wrote, told event by event; with peers who mean no good."""

from pathlib import Path

from swarmd.core.commands import Announce, Gather, PublishReport, Register, Train
from swarmd.core.events import (
    Event,
    LinkDown,
    LinkUp,
    MemberSeen,
    NodeStarted,
    RecordsRejected,
    Registered,
    ReportPublished,
    ReportSeen,
    RolloutsGathered,
    RoundAnnounced,
    RoundPublished,
    StageTrained,
    TrainerReady,
    WorkerExited,
    WorkerStarted,
)
from swarmd.core.values import CoordinatorSettings, RolloutsRef, SetAside, Settings, Skill
from swarmd.eventlog.blobs import BlobStore
from swarmd.eventlog.frame import digest_commands
from swarmd.eventlog.store import LOG_BYTES_MAX, EventLog
from swarmd.paths import NodeDirectory
from swarmd.swarms.plan import ScoredGroup, encode_scored_groups
from swarmd.swarms.rollouts import Group, Rollouts, encode_rollouts
from tests.core.story import Story

SWARM = "played"
STAGE_S = 60.0
HOSTILE = '<img src=x onerror="window.harmed=1">'
HOSTILE_MARK = "<b>!!</b>"
HOSTILE_TEXT = '</p><script>window.harmed=1</script><a href="javascript:window.harmed=1">win</a> \u202eevil\u0000'


def peer_id(number: int) -> str:
    return f"12D3KooW{number:044d}".replace("0", "z")


NODE = peer_id(9)
NAMES = {NODE: "calm tidy otter", peer_id(1): HOSTILE, peer_id(2): "brisk loud magpie", peer_id(3): "brisk shy newt"}


class PlayedNode:
    """A coordinator whose log is written as its daemon would.

    Args:
        root: its data directory.
        began_at: POSIX seconds of its first event.
    """

    def __init__(self, root: Path, began_at: float) -> None:
        self.paths = NodeDirectory(root)
        self.blobs = BlobStore(self.paths.blobs)
        settings = Settings(
            peer=NODE,
            swarm=SWARM,
            role="coordinator",
            coordinator=NODE,
            name=NAMES[NODE],
            coordination=CoordinatorSettings(min_peers=3, stage_s=STAGE_S),
        )
        self.story = Story(settings)
        self.story.at = began_at
        self.log = EventLog.open(self.paths.events, NODE, "run1", bytes_max=LOG_BYTES_MAX)

    def close(self) -> None:
        self.log.close()

    def tell(self, *events: Event, after_s: float = 0.5) -> None:
        """Let events happen, and write them."""
        self.story.at += after_s
        known = len(self.story.recorded)
        commands = self.story.tell(*events)
        self.log.append(self.story.at, self.story.recorded[known:], digest_commands(commands))

    def pending(self, kind: type) -> str:
        """Id of the command of this kind that waits for an answer."""
        return next(command.id for command in reversed(self.story.state.pending) if isinstance(command, kind))

    def join(self) -> None:
        self.tell(NodeStarted(self.story.node, run="run1", version="1"))
        self.tell(WorkerStarted("network", 11, 1))
        self.tell(WorkerStarted("trainer", 12, 1))
        self.tell(LinkUp(2), after_s=2)
        self.tell(Registered(self.pending(Register)))
        for peer, name in NAMES.items():
            self.tell(MemberSeen(peer, name))
        self.tell(TrainerReady("cpu", "tiny", 500_000), after_s=3)

    def open_round(self, round_: int) -> None:
        """The announcement is stored and read."""
        now = self.story.at
        self.tell(RoundPublished(self.pending(Announce), round_, 0))
        self.tell(RoundAnnounced(round_, 0, now, now + STAGE_S))

    def work(self, round_: int) -> None:
        """Gather, train and publish, then see the others' reports."""
        if any(isinstance(command, Gather) for command in self.story.state.pending):
            refs = tuple(self.share(peer, round_ - 1) for peer in NAMES if peer != NODE)
            self.tell(RolloutsGathered(self.pending(Gather), round_, 0, refs), after_s=2)
        reward = 0.4 + 0.1 * round_
        own = self.share(NODE, round_)
        train, scored = self.pending(Train), self.score(round_)
        refused = (("quoted", 2),) if round_ % 3 == 1 else ()
        self.tell(
            StageTrained(
                *(train, round_, 0, reward, own),
                steps=40,
                tokens=4000 + 300 * round_,
                seconds=30.0,
                peer_groups=3,
                held_out=min(1.0, 0.2 + 0.15 * round_),
                rejected=refused,
                held_out_before=0.1 if round_ == 0 else None,
                scored=scored,
                set_aside=self.doubt() if round_ else (),
                skills=self.skills(round_),
            ),
            after_s=30,
        )
        self.tell(ReportPublished(self.pending(PublishReport), round_, 0))
        self.tell(RecordsRejected(peer_id(2), "signature", 3))
        for number, peer in enumerate(NAMES):
            self.tell(ReportSeen(peer, round_, 0, reward + number / 20, "d" * 64))

    def skills(self, round_: int) -> tuple[Skill, ...]:
        """One task goes well; another, of an ill-meant name, falls after the first round, and is drawn more."""
        fallen = round_ > 0
        held_out = 0.8 / (1 + round_)
        return Skill(HOSTILE, held_out, 32, 0.8, fallen, 2.5 if fallen else 1.0), Skill("sums", 0.5, 32, 0.5)

    def doubt(self) -> tuple[SetAside, ...]:
        """What a stage sets aside of peers' rollouts."""
        mark = SetAside(peer_id(1), 40, 30, HOSTILE_MARK + HOSTILE, HOSTILE, HOSTILE_MARK, 1.0, 0.0, 0.004)
        return mark, SetAside(peer_id(2), 50, 0, over_share=1, of_little=3)

    def score(self, round_: int) -> str:
        """What the node made of its own completions of a round, and of peers' of the one before."""
        places = [(NODE, round_)] + [(peer, round_ - 1) for peer in NAMES if peer != NODE and round_ > 0]
        return self.blobs.put(
            encode_scored_groups(
                ScoredGroup(
                    *(peer, of, 0, "sums", 1, of),
                    question=f"What is {of} + 1? {HOSTILE}",
                    truth=str(of + 1),
                    rewards=(1.2, 0.2) if peer == NODE else (0.2, 0.0),
                    right=(peer == NODE, False),
                )
                for peer, of in places
            )
        )

    def share(self, peer: str, round_: int) -> RolloutsRef:
        """Rollouts of a peer in the node's store."""
        text = HOSTILE_TEXT if NAMES[peer] == HOSTILE else f"<answer>{round_}</answer>"
        body = encode_rollouts(Rollouts(1, SWARM, peer, round_, 0, (Group("sums", "c", 1, round_, (text, text)),)))
        return RolloutsRef(peer, round_, 0, self.blobs.put(body), len(body), 1)

    def stumble(self) -> None:
        """The network goes and comes back."""
        self.tell(LinkDown("p2pd ended"), after_s=1)
        self.tell(WorkerExited("network", "ended by signal 9", signal=9))
        self.tell(WorkerStarted("network", 21, 2), after_s=2)
        self.tell(LinkUp(3))

    def play(self, rounds: int) -> None:
        """Join, and run so many rounds; the next one is open then."""
        self.join()
        for round_ in range(rounds):
            self.open_round(round_)
            self.work(round_)
        self.open_round(rounds)
