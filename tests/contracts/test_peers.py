"""Peers, membership and bootnodes."""

import pytest

from tests.contracts.chain import INT_REWARD, UINT_REWARD, Said, Swarm

ZERO = "0x" + 40 * "0"
LONG = "12D3KooW" + 44 * "x"  # 52 characters, as of an Ed25519 key: longer than a word of storage


def test_an_account_has_its_peers_in_order_and_others_have_theirs(swarm: Swarm) -> None:
    swarm.register(swarm.alice, "c", "a", "b")
    swarm.register(swarm.bob, LONG)
    assert swarm.ask("getPeerId", [swarm.bob, swarm.carol, swarm.alice]) == [[LONG], [], ["c", "a", "b"]]
    assert swarm.ask("getEoa", ["a", LONG, "x", "c"]) == [swarm.alice, swarm.bob, ZERO, swarm.alice]
    assert (swarm.ask("getPeerId", []), swarm.ask("getEoa", [])) == ([], [])


def test_a_peer_id_is_registered_once_by_whomever(swarm: Swarm) -> None:
    swarm.register(swarm.alice, "p")
    assert swarm.refusal(swarm.alice, "registerPeer", "p") == "PeerIdAlreadyRegistered"
    assert swarm.refusal(swarm.bob, "registerPeer", "p") == "PeerIdAlreadyRegistered"
    assert swarm.ask("getPeerId", [swarm.alice, swarm.bob]) == [["p"], []]


@pytest.mark.parametrize("length", [1, 30, 31, 32, 52, 62, 63, 64, 200, 255, 256])
def test_a_peer_id_of_any_length_comes_back_whole(swarm: Swarm, length: int) -> None:
    """Storage keeps short ones, longer ones and very long ones in different ways."""
    peer = ("12D3KooW\x00é" * 30).encode()[:length].decode(errors="replace").replace("\ufffd", "-")
    swarm.register(swarm.alice, "before", peer, "after")
    assert swarm.ask("getPeerId", [swarm.alice]) == [["before", peer, "after"]]
    unseen = peer[:-1] + "!"
    swarm.send(swarm.alice, "submitWinners", 0, [peer, unseen], peer)
    assert swarm.ask("getVoterVotes", 0, peer) == [peer, unseen]
    assert swarm.ask("winnerLeaderboard", 0, 9)[0] == [peer, unseen]
    assert swarm.ask("getEoa", [peer, unseen]) == [swarm.alice, f"0x{0:040x}"]


def test_an_empty_peer_id_reports_and_votes_like_any_other(swarm: Swarm) -> None:
    swarm.register(swarm.alice, "")
    swarm.send(swarm.alice, INT_REWARD, 0, 0, 7, "")
    swarm.send(swarm.alice, "submitWinners", 0, [""], "")
    assert swarm.ask("getVoterVotes", 0, "") == [""]
    assert swarm.ask("winnerLeaderboard", 0, 10) == [[""], [1]]


# Membership


@pytest.fixture
def closed(swarm: Swarm) -> Swarm:
    """A swarm that alice closed; p and q are alice's, p alone is on the list."""
    swarm.register(swarm.alice, "p", "q")
    swarm.send(swarm.owner, "grantRole", swarm.role("MEMBERSHIP_MANAGER_ROLE"), swarm.alice)
    swarm.send(swarm.alice, "allowPeers", ["p"])
    swarm.send(swarm.alice, "setMembershipOpen", False)
    return swarm


def test_only_a_membership_manager_changes_membership(swarm: Swarm) -> None:
    for sender in (swarm.owner, swarm.alice):
        assert swarm.refusal(sender, "setMembershipOpen", False) == "OnlyMembershipManager"
        assert swarm.refusal(sender, "allowPeers", ["p"]) == "OnlyMembershipManager"
        assert swarm.refusal(sender, "disallowPeers", ["p"]) == "OnlyMembershipManager"


def test_changes_of_membership_are_said_in_full(swarm: Swarm) -> None:
    swarm.send(swarm.owner, "grantRole", swarm.role("MEMBERSHIP_MANAGER_ROLE"), swarm.alice)
    said = [
        *swarm.send(swarm.alice, "setMembershipOpen", False),
        *swarm.send(swarm.alice, "allowPeers", ["p", LONG]),
        *swarm.send(swarm.alice, "disallowPeers", [LONG]),
        *swarm.send(swarm.alice, "setMembershipOpen", True),
    ]
    assert said == [
        Said("MembershipChanged", (swarm.alice, False)),
        Said("PeersAllowed", (swarm.alice, ["p", LONG])),
        Said("PeersDisallowed", (swarm.alice, [LONG])),
        Said("MembershipChanged", (swarm.alice, True)),
    ]


def test_a_closed_swarm_registers_members_only(closed: Swarm) -> None:
    assert closed.refusal(closed.bob, "registerPeer", "r") == "PeerNotAllowed"
    closed.send(closed.alice, "allowPeers", ["r"])
    closed.register(closed.bob, "r")
    assert closed.ask("getEoa", ["r"]) == [closed.bob]


def test_in_a_closed_swarm_members_report_and_vote_and_others_do_not(closed: Swarm) -> None:
    for overload in (INT_REWARD, UINT_REWARD):
        assert closed.refusal(closed.alice, overload, 0, 0, 1, "q") == "PeerNotAllowed"
    assert closed.refusal(closed.alice, "submitWinners", 0, ["p"], "q") == "PeerNotAllowed"
    closed.send(closed.alice, INT_REWARD, 0, 0, 1, "p")
    closed.send(closed.alice, "submitWinners", 0, ["q"], "p")
    assert closed.ask("getTotalRewards", ["p", "q"]) == [1, 0]


def test_the_list_outlives_a_time_of_open_membership(closed: Swarm) -> None:
    closed.send(closed.alice, "setMembershipOpen", True)
    assert closed.ask("isMember", ["p", "q"]) == [True, True]
    closed.send(closed.alice, INT_REWARD, 0, 0, 1, "q")
    closed.send(closed.alice, "setMembershipOpen", False)
    assert closed.ask("isMember", ["p", "q"]) == [True, False]


def test_membership_is_the_last_thing_checked_about_the_sender(closed: Swarm) -> None:
    assert closed.refusal(closed.bob, "registerPeer", "q") == "PeerIdAlreadyRegistered"
    assert closed.refusal(closed.bob, INT_REWARD, 0, 0, 1, "q") == "InvalidVoterPeerId"
    assert closed.refusal(closed.alice, "submitWinners", 0, ["p", "p"], "q") == "PeerNotAllowed"


# Bootnodes

NODES = [f"/ip4/192.0.2.{n}/tcp/38331/p2p/{LONG}" for n in range(3)]


def test_bootnodes_are_kept_in_order(swarm: Swarm) -> None:
    assert (swarm.ask("getBootnodes"), swarm.ask("getBootnodesCount")) == ([], 0)
    assert swarm.send(swarm.owner, "addBootnodes", NODES[:2]) == [Said("BootnodesAdded", (swarm.owner, 2))]
    swarm.send(swarm.owner, "addBootnodes", NODES[2:])
    assert (swarm.ask("getBootnodes"), swarm.ask("getBootnodesCount")) == (NODES, 3)


@pytest.mark.parametrize(("index", "left"), [(0, [2, 1]), (1, [0, 2]), (2, [0, 1])])
def test_the_last_bootnode_takes_the_place_of_a_removed_one(swarm: Swarm, index: int, left: list[int]) -> None:
    swarm.send(swarm.owner, "addBootnodes", NODES)
    assert swarm.send(swarm.owner, "removeBootnode", index) == [Said("BootnodeRemoved", (swarm.owner, index))]
    assert swarm.ask("getBootnodes") == [NODES[n] for n in left]


def test_a_bootnode_that_is_not_there_is_not_removed(swarm: Swarm) -> None:
    assert swarm.refusal(swarm.owner, "removeBootnode", 0) == "InvalidBootnodeIndex"
    swarm.send(swarm.owner, "addBootnodes", NODES)
    assert swarm.refusal(swarm.owner, "removeBootnode", 3) == "InvalidBootnodeIndex"


def test_all_bootnodes_can_be_cleared_and_others_added(swarm: Swarm) -> None:
    swarm.send(swarm.owner, "addBootnodes", NODES)
    assert swarm.send(swarm.owner, "clearBootnodes") == [Said("AllBootnodesCleared", (swarm.owner,))]
    assert swarm.ask("getBootnodes") == []
    swarm.send(swarm.owner, "addBootnodes", NODES[1:2])
    assert swarm.ask("getBootnodes") == NODES[1:2]


def test_only_a_bootnode_manager_changes_bootnodes(swarm: Swarm) -> None:
    refused = [
        swarm.refusal(swarm.alice, "addBootnodes", NODES),
        swarm.refusal(swarm.alice, "removeBootnode", 7),
        swarm.refusal(swarm.alice, "clearBootnodes"),
    ]
    assert refused == ["OnlyBootnodeManager"] * 3
    swarm.send(swarm.owner, "grantRole", swarm.role("BOOTNODE_MANAGER_ROLE"), swarm.alice)
    swarm.send(swarm.alice, "addBootnodes", NODES)
    assert swarm.ask("getBootnodesCount") == 3
