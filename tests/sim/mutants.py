"""Small mistakes planted in the core and in the simulated disk, to see whether the checks notice them.

How they get into the code: `tests/sim/planting.py`.
"""

from __future__ import annotations

from swarmd.core import turn
from swarmd.core.contract import clock, submissions, votes
from swarmd.core.coordinator import coordination, waiting
from swarmd.core.node import catchup, pause, results, rounds, workers
from swarmd.sim import node
from tests.sim.planting import Mutant

MUTANTS = (
    Mutant(
        "a pause never ends",
        pause,
        "turn.state.low_space = None",
        "pass",
    ),
    Mutant(
        "a stage is begun on a disk that is nearly full",
        pause,
        "    if chart in IDLE:",
        "    if chart == IDLE[0]:",
        (
            ("faults", 120.0),
            ("nodes", 3),
        ),
    ),
    Mutant(
        "rounds missed in a pause count as the node's own slowness",
        pause,
        "        turn.state.faulted = True\n",
        "",
    ),
    Mutant(
        "a stage trained already is trained again after a restart",
        rounds,
        "    elif work.result is not None:\n        turn.move_round",
        "    elif False:\n        turn.move_round",
    ),
    Mutant(
        "a stage that was given up is begun again at once",
        rounds,
        "(clock.round, clock.stage) > (work.round, work.stage)",
        "(clock.round, clock.stage) >= (work.round, work.stage)",
    ),
    Mutant(
        "an announcement of the past is followed",
        rounds,
        "    if place < before:\n        return\n",
        "",
    ),
    Mutant(
        "a duplicate announcement restarts the stage",
        rounds,
        "follow_clock(turn, moved=place > before)",
        "follow_clock(turn, moved=place >= before)",
    ),
    Mutant(
        "an answered command stays pending",
        turn,
        "command = self.pending.pop(command_id, None)",
        "command = self.pending.get(command_id)",
    ),
    Mutant(
        "an older answer frees a busy trainer",
        rounds,
        'turn.state.trainer.chart == "busy" and turn.state.trainer.train == train',
        'turn.state.trainer.chart == "busy"',
    ),
    Mutant(
        "a cancellation has no deadline",
        rounds,
        '        turn.arm("cancel", turn.at + CANCEL_S)\n',
        "",
    ),
    Mutant(
        "gathering has no deadline",
        rounds,
        '    turn.arm("gather", until_at)\n',
        "",
    ),
    Mutant(
        "a trainer that came back is not told what waits for it",
        workers,
        "    resend_training(turn)\n\n\ndef resend_training",
        "\n\ndef resend_training",
    ),
    Mutant(
        "a worker that ended is not started again",
        workers,
        'turn.arm(timer_about("restart", event.worker), turn.at + RESTART.after(max(1, len(life.exits))))',
        "pass",
    ),
    Mutant(
        "a stage that was given up is left while the trainer is still at it",
        rounds,
        "    return is_training(turn, train_id(work.round, work.stage))\n",
        "    return False\n",
    ),
    Mutant(
        "a coordinator closes stages before anybody could train them",
        coordination,
        "    elif awaits_trainer(turn.state):\n",
        "    elif False:\n",
        given=(("stage_s", 25.0), ("faults", 120.0)),
    ),
    Mutant(
        "a stage's time begins before its coordinator can train",
        coordination,
        "    if waits and fresh and",
        "    if False and",
    ),
    Mutant(
        "a skip is not counted",
        results,
        "    state.skipped_to = event.last\n",
        "",
    ),
    Mutant(
        "the round that was trained counts as skipped",
        catchup,
        "first = max(after.done[0], after.skipped_to) + 1",
        "first = max(after.done[0] - 1, after.skipped_to) + 1",
    ),
    Mutant(
        "a quorum of others closes a stage that this node trains",
        waiting,
        "    return not awaits_own(turn)\n",
        "    return True\n",
        (("quorum", 0.5),),
    ),
    Mutant(
        "the quorum is one report short",
        waiting,
        "needed = max(1, math.ceil(quorum * expected))",
        "needed = max(1, math.ceil(quorum * expected) - 1)",
    ),
    Mutant(
        "members that fell silent are never waited for again",
        waiting,
        "    return waiting.number % (WIDE_EVERY if silent <= SILENT_STAGES else LONG_SILENT_EVERY) == 0",
        "    return False",
        (
            ("stages", 1),
            ("quorum", 1.0),
            ("train_mean_s", 5.0),
            ("stage_s", 25.0),
            ("nodes", 3),
            ("behind", "finish-stage"),
            ("faults", 60.0),
        ),
    ),
    Mutant(
        "a member is waited for no longer than it took",
        waiting,
        "OWN_TIMES * member.took_s + SLACK_SHARE * stage_s",
        "0.9 * member.took_s",
    ),
    Mutant(
        "a report counts twice",
        coordination,
        "or coordination.reports.get(event.peer):",
        "or False:",
        (
            ("failure", 0.2),
            ("nodes", 3),
        ),
    ),
    Mutant(
        "a stage has no deadline",
        waiting,
        '    turn.arm("stage", min(until, deadline_at) if until > turn.at else deadline_at)\n',
        "    pass\n",
    ),
    Mutant(
        "a coordinator that is cut off closes rounds alone",
        coordination,
        'if closed.chart == "open.collecting" and is_alone(turn.state):',
        "if False:",
        (("when_alone", "hold"), ("min_peers", 2)),
    ),
    Mutant(
        "the coordinator starts again at round 0",
        workers,
        "    if turn.state.coordination is None:\n        turn.state.coordination = Coordination()\n",
        "    turn.state.coordination = Coordination()\n",
    ),
    Mutant(
        "two announcements share an id",
        coordination,
        "coordination.deadline_at = deadline_at\n        coordination.openings += 1\n",
        "coordination.deadline_at = deadline_at\n",
    ),
    Mutant(
        "a lost clock is taken for a swarm without rounds",
        rounds,
        "    if turn.state.chain is None and (clock is None or clock.final):\n        turn.move_round",
        "    if True:\n        turn.move_round",
    ),
    Mutant(
        "the log is not synced",
        node,
        "        self._log.sync()\n",
        "        self._log.synced = max(self._log.synced, len(self._log.commits) - 1)\n",
    ),
)

CHAIN_MUTANTS = (
    Mutant(
        "an attempt is let out and forgotten",
        submissions,
        '"prepare", prepared=prepared, attempts=attempts',
        '"prepare", attempts=attempts',
    ),
    Mutant(
        "the worker is not told what was tried",
        submissions,
        "            prepared=submission.prepared,\n",
        "            prepared=(),\n",
    ),
    Mutant(
        "what was confirmed is safe from every reorganisation",
        submissions,
        "if each.chart in ON_CHAIN and block_of(each) > fork",
        'if each.chart == "included" and block_of(each) > fork',
    ),
    Mutant(
        "a reorganisation drops one block too few",
        submissions,
        "block_of(each) > fork",
        "block_of(each) > fork + 1",
    ),
    Mutant(
        "the last intention goes first",
        submissions,
        "for each in state.submissions:\n        if each.chart not in (*ON_CHAIN",
        "for each in reversed(state.submissions):\n        if each.chart not in (*ON_CHAIN",
    ),
    Mutant(
        "what was lost is not tried again",
        submissions,
        '"lose", reason=event.reason, block=None):\n        _retry(turn)',
        '"lose", reason=event.reason, block=None):\n        turn.disarm("submission")',
    ),
    Mutant(
        "a restart empties the outbox",
        workers,
        "    state.low_space = None\n",
        "    state.low_space, state.submissions = None, ()\n",
    ),
    Mutant(
        "the vote is cast before the round is over",
        votes,
        "tally is None or tally.round >= round",
        "tally is None or tally.round > round",
    ),
    Mutant(
        "the registration waits its turn",
        submissions,
        'intend(turn, Submission("register", "register"), first=True)',
        'intend(turn, Submission("register", "register"))',
    ),
    Mutant(
        "news put off the look at a submission",
        turn,
        "self.arm(name, due_at if standing is None else min(due_at, standing.due_at))",
        "self.arm(name, due_at)",
        (
            ("duplicate", 0.3),
            ("nodes", 3),
        ),
    ),
    Mutant(
        "what lies ahead of the contract holds up everything",
        submissions,
        "return (submission.round, submission.stage) > (chain.round, chain.stage)",
        "return False",
        (
            ("policy", "reports"),
            ("nodes", 3),
            ("restart_mean_s", 60.0),
            ("stages", 3),
            ("stage_s", 25.0),
            ("train_mean_s", 2.0),
            ("reorgs", 600.0),
            ("reorg_depth", 12),
        ),
    ),
    Mutant(
        "two attempts share an id",
        submissions,
        "attempts = submission.attempts + 1",
        "attempts = 1",
    ),
    Mutant(
        "a submission that is wanted twice begins anew",
        submissions,
        "if known is not None and not (known.kind in REPEATABLE and known.chart in SETTLED):\n        return",
        "if False:\n        return",
    ),
    Mutant(
        "nobody looks at the clock while the chain is away",
        clock,
        '    turn.arm("clock", turn.at + turn.settings.clock_s)\n',
        "",
    ),
    Mutant(
        "nobody moves the contract on when its time is over",
        clock,
        'turn.arm_sooner("drive", max(deadline_at, turn.at) + wait_s)',
        'turn.disarm("drive")',
    ),
    Mutant(
        "the clock goes back with a reorganisation",
        rounds,
        "    if place < before:\n        return\n",
        "",
    ),
    Mutant(
        "blocks of before a fork are remembered",
        clock,
        "kept = tuple([known for known in recent if known.number < block.number])",
        "kept = recent",
    ),
    Mutant(
        "a step that came too late is never looked at again",
        clock,
        '        turn.arm("drive", turn.at + max(1.0, submissions.TURNS * turn.chain_settings.stagger_s))\n',
        "",
    ),
)
