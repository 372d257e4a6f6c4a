"""What calls cost in gas, measured on a real anvil.

`python -m tests.contracts.gas` prints the table of docs/CONTRACT.md; `--write` puts it there.
"""

import sys
from pathlib import Path

from web3 import Web3

from tests.anvil import running_anvil
from tests.contracts.chain import INT_REWARD, Swarm, connect, deployed, deployed_swarm

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "CONTRACT.md"
BEGIN, END = "<!-- gas table: make contracts-gas -->\n", "<!-- end of the gas table -->\n"
STAGES = (3, 1)
BOARD = 100  # places on a leaderboard
WINNERS = 10

Costs = dict[str, int]


def peer(number: int) -> str:
    """A peer id of 52 characters, as of an Ed25519 key."""
    return f"12D3KooW{number:044d}"


def peers(first: int, count: int) -> list[str]:
    return [peer(number) for number in range(first, first + count)]


def measure(w3: Web3, stages: int) -> Costs:
    """Gas of a deployment, and of each call in a new swarm, by what it does."""
    implementation, gas = deployed(w3, f"LockedSwarmCoordinator-{stages}")
    swarm, proxy_gas = deployed_swarm(w3, stages, implementation)
    costs = {"deploy the implementation": gas, "deploy and initialise the proxy": proxy_gas}
    for part in (joining, rewards, votes, moves, steering):
        costs |= part(swarm)
    return costs


def joining(swarm: Swarm) -> Costs:
    return {
        "registerPeer, the account's first": swarm.gas_of(swarm.alice, "registerPeer", peer(0)),
        "registerPeer, another one": swarm.gas_of(swarm.alice, "registerPeer", peer(1)),
    }


def rewards(swarm: Swarm) -> Costs:
    first = swarm.gas_of(swarm.alice, INT_REWARD, 0, 0, 1000, peer(0))
    other = swarm.gas_of(swarm.alice, INT_REWARD, 0, 0, 1000, peer(1))
    swarm.next_round()
    return {
        "submitReward, the peer's first": first,
        "submitReward, another peer of the account": other,
        "submitReward, in a later round": swarm.gas_of(swarm.alice, INT_REWARD, 1, 0, 1000, peer(0)),
        "submitReward, for a past round": swarm.gas_of(swarm.bob, INT_REWARD, 0, 0, 1000, own_peer(swarm)),
    }


def own_peer(swarm: Swarm) -> str:
    """A peer of bob's that has reported in the current round."""
    swarm.register(swarm.bob, peer(2))
    swarm.send(swarm.bob, INT_REWARD, *swarm.place(), 1000, peer(2))
    return peer(2)


def votes(swarm: Swarm) -> Costs:
    """A vote for registered peers, for unknown ones, and both again once the board is full."""
    few = swarm.gas_of(swarm.alice, "submitWinners", 0, [peer(1)], peer(0))
    unknown = swarm.gas_of(swarm.alice, "submitWinners", 0, peers(1000, WINNERS), peer(1))
    known = swarm.gas_of(swarm.alice, "submitWinners", 1, peers(1000, WINNERS), peer(0))
    for first in range(0, BOARD, 50):
        voter = peer(3 + first)
        swarm.register(swarm.alice, voter)
        for round_ in (0, 1):  # the second vote takes those of the first past whoever has but one
            swarm.send(swarm.alice, "submitWinners", round_, peers(2000 + first, 50), voter)
    return {
        "submitWinners, 1 known winner": few,
        f"submitWinners, {WINNERS} winners never seen": unknown,
        f"submitWinners, {WINNERS} known winners": known,
        f"submitWinners, {WINNERS} winners who climb a full board": swarm.gas_of(
            swarm.alice, "submitWinners", 1, peers(2000 + BOARD - WINNERS, WINNERS), peer(1)
        ),
    }


def moves(swarm: Swarm) -> Costs:
    swarm.send(swarm.owner, "setRoundPolicy", 1, 1)
    to_round = "updateStageAndRound, to a new round"
    costs = {}
    for _ in range(swarm.stages):
        before = swarm.ask("currentRound")
        gas = swarm.gas_of(swarm.owner, "updateStageAndRound")
        costs[to_round if swarm.ask("currentRound") > before else "updateStageAndRound, to a new stage"] = gas
    swarm.wait(1)
    return costs | {"advance": swarm.gas_of(swarm.bob, "advance")}


def steering(swarm: Swarm) -> Costs:
    """What owners and their deputies send now and then."""
    role = swarm.role("MEMBERSHIP_MANAGER_ROLE")
    node = [f"/ip4/192.0.2.1/tcp/38331/p2p/{peer(0)}"]
    return {
        "grantRole": swarm.gas_of(swarm.owner, "grantRole", role, swarm.owner),
        "setRoundPolicy": swarm.gas_of(swarm.owner, "setRoundPolicy", 3, 600),
        "setMembershipOpen": swarm.gas_of(swarm.owner, "setMembershipOpen", False),
        "allowPeers, 10 of them": swarm.gas_of(swarm.owner, "allowPeers", peers(0, 10)),
        "addBootnodes, 1 of them": swarm.gas_of(swarm.owner, "addBootnodes", node),
    }


def table() -> str:
    """The table in Markdown: a row a call, a column a build."""
    with running_anvil() as url:
        w3 = connect(url)
        columns = [measure(w3, stages) for stages in STAGES]
    calls = dict.fromkeys(call for column in columns for call in column)
    lines = ["| gas of | 3 stages | 1 stage |", "|---|---:|---:|"]
    lines += [f"| {call} | {' | '.join(figure(column.get(call)) for column in columns)} |" for call in calls]
    return "".join(f"{line}\n" for line in lines)


def figure(gas: int | None) -> str:
    return "-" if gas is None else f"{gas:,}"


def documented() -> str:
    """The table as docs/CONTRACT.md has it."""
    return DOCUMENT.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]


def main() -> None:
    found = table()
    print(found, end="")
    if "--write" in sys.argv[1:]:
        text = DOCUMENT.read_text(encoding="utf-8")
        DOCUMENT.write_text(text.replace(BEGIN + documented() + END, BEGIN + found + END), encoding="utf-8")


if __name__ == "__main__":
    main()
