"""What clients of upstream's contract compiled into themselves: selectors, topics, results, and the names of errors."""

import re

import pytest
from eth_utils.abi import abi_to_signature
from web3 import Web3

from tests.contracts.chain import artefact
from tests.contracts.gas import documented, table

BUILDS = ["SwarmCoordinator-3", "SwarmCoordinator-1", "LockedSwarmCoordinator-3", "LockedSwarmCoordinator-1"]

# Name, selector and results of every function that a client of 0.4.2 to 0.6 may call.
FUNCTIONS = {
    "registerPeer(string)": ("33e7fb45", ""),
    "submitReward(uint256,uint256,int256,string)": ("5194e15f", ""),
    "submitReward(uint256,uint256,uint256,string)": ("06ca2dd3", ""),
    "submitWinners(uint256,string[],string)": ("fbe94d68", ""),
    "getBootnodes()": ("6370ae4f", "string[]"),
    "currentRound()": ("8a19c8bc", "uint256"),
    "currentStage()": ("5bf5d54c", "uint256"),
    "stageCount()": ("f33261ac", "uint256"),
    "getBootnodesCount()": ("48495bdb", "uint256"),
    "getEoa(string[])": ("96bac35a", "address[]"),
    "getPeerId(address[])": ("b894a469", "string[][]"),
    "getTotalRewards(string[])": ("80c3d97f", "int256[]"),
    "getRoundStageReward(uint256,uint256,address[])": ("098f027f", "int256[]"),
    "hasSubmittedRoundStageReward(uint256,uint256,address)": ("9291fee5", "bool"),
    "hasSubmittedRoundStageReward(uint256,uint256,string)": ("1fcaf676", "bool"),
    "getTotalWins(string)": ("099c4002", "uint256"),
    "getVoterVoteCount(string)": ("dfb3c7df", "uint256"),
    "getVoterVotes(uint256,string)": ("2bdd8ea6", "string[]"),
    "getPeerVoteCount(uint256,string)": ("4f4026c3", "uint256"),
    "voterLeaderboard(uint256,uint256)": ("18a6fd88", "string[],uint256[]"),
    "winnerLeaderboard(uint256,uint256)": ("2f4be652", "string[],uint256[]"),
    "uniqueVoters()": ("b0c77404", "uint256"),
    "uniqueVotedPeers()": ("42d2c6a0", "uint256"),
    "hasRole(bytes32,address)": ("91d14854", "bool"),
    "OWNER_ROLE()": ("e58378bb", "bytes32"),
    "STAGE_MANAGER_ROLE()": ("068dc322", "bytes32"),
    "BOOTNODE_MANAGER_ROLE()": ("7c8973c7", "bytes32"),
    "addBootnodes(string[])": ("d90d8573", ""),
    "removeBootnode(uint256)": ("4f52ca36", ""),
    "clearBootnodes()": ("4179a759", ""),
    "updateStageAndRound()": ("e28b0586", "uint256,uint256"),
    "grantRole(bytes32,address)": ("2f2ff15d", ""),
    "revokeRole(bytes32,address)": ("d547741f", ""),
    "initialize(address)": ("c4d66de8", ""),
    "upgradeToAndCall(address,bytes)": ("4f1ef286", ""),
    "proxiableUUID()": ("52d1902d", "bytes32"),
    "UPGRADE_INTERFACE_VERSION()": ("ad3cb1cc", "string"),
}
ERRORS = {
    "OnlyOwner()": "5fc483c5",
    "OnlyStageManager()": "0719ac8c",
    "OnlyBootnodeManager()": "014c1cb5",
    "InvalidBootnodeIndex()": "7d8aaf0e",
    "InvalidRoundNumber()": "4197f6ea",
    "InvalidStageNumber()": "f7d20563",
    "WinnerAlreadyVoted()": "3d51d827",
    "PeerIdAlreadyRegistered()": "723dc675",
    "InvalidVoterPeerId()": "1614b50c",
    "RewardAlreadySubmitted()": "e39ce02e",
    "InvalidVote()": "d5dd0c66",
    "StageOutOfBounds()": "fc4e0d7c",
    "InvalidInitialization()": "f92ee8a9",
    "NotInitializing()": "d7e6bcf8",
    "UUPSUnauthorizedCallContext()": "e07c8dba",
    "FailedCall()": "d6bda275",
    "ERC1967NonPayable()": "b398979f",
    "AddressEmptyCode(address)": "9996b315",
    "ERC1967InvalidImplementation(address)": "4c9c8ce3",
    "UUPSUnsupportedProxiableUUID(bytes32)": "aa1d49a4",
}
# An argument in brackets is indexed.
EVENTS = {
    "StageAdvanced": "[uint256 roundNumber], uint256 newStage",
    "RoundAdvanced": "[uint256 newRoundNumber]",
    "PeerRegistered": "[address eoa], string peerId",
    "BootnodesAdded": "[address manager], uint256 count",
    "BootnodeRemoved": "[address manager], uint256 index",
    "AllBootnodesCleared": "[address manager]",
    "WinnerSubmitted": "[address account], string peerId, [uint256 roundNumber], string[] winners",
    "RoleGranted": "[bytes32 role], [address account], [address sender]",
    "RoleRevoked": "[bytes32 role], [address account], [address sender]",
    "RewardSubmitted": "[address account], [uint256 roundNumber], [uint256 stageNumber], int256 reward, string peerId",
    "CumulativeRewardsUpdated": "[address account], string peerId, int256 totalRewards",
    "Initialized": "uint64 version",
    "Upgraded": "[address implementation]",
    # Ours
    "RoundPolicyChanged": "[address owner], uint256 minSubmissions, uint256 maxStageSeconds",
    "MembershipChanged": "[address manager], bool open",
    "PeersAllowed": "[address manager], string[] peerIds",
    "PeersDisallowed": "[address manager], string[] peerIds",
}
OWN_FUNCTIONS = {
    "MEMBERSHIP_MANAGER_ROLE()": "bytes32",
    "advance()": "uint256,uint256",
    "allowPeers(string[])": "",
    "canAdvance()": "bool",
    "disallowPeers(string[])": "",
    "extensionsVersion()": "uint256",
    "isMember(string[])": "bool[]",
    "membershipOpen()": "bool",
    "roundPolicy()": "uint256,uint256",
    "setMembershipOpen(bool)": "",
    "setRoundPolicy(uint32,uint32)": "",
    "stageStartedAt()": "uint256",
    "stageSubmissionCount()": "uint256",
}
OWN_ERRORS = {"OnlyMembershipManager()": "39ab07c0", "PeerNotAllowed()": "09d9f3d7", "AdvanceNotAllowed()": "43bf5466"}


def selector(signature: str) -> str:
    return Web3.keccak(text=signature)[:4].hex()


def entries(build: str, kind: str) -> list[dict]:
    return [entry for entry in artefact(build)["abi"] if entry["type"] == kind]


def results(entry: dict) -> str:
    return ",".join(output["type"] for output in entry["outputs"])


@pytest.mark.parametrize("build", BUILDS)
def test_every_function_is_the_one_that_clients_know(build: str) -> None:
    ours = {abi_to_signature(entry): results(entry) for entry in entries(build, "function")}
    assert ours == {name: returned for name, (_, returned) in FUNCTIONS.items()} | OWN_FUNCTIONS
    assert {name: selector(name) for name in FUNCTIONS} == {name: code for name, (code, _) in FUNCTIONS.items()}


@pytest.mark.parametrize("build", BUILDS)
def test_every_error_is_the_one_that_clients_decode(build: str) -> None:
    ours = {name: selector(name) for name in map(abi_to_signature, entries(build, "error"))}
    assert ours == ERRORS | OWN_ERRORS


@pytest.mark.parametrize("build", BUILDS)
def test_every_event_has_the_arguments_and_topics_that_clients_know(build: str) -> None:
    def shown(argument: dict) -> str:
        text = f"{argument['type']} {argument['name']}"
        return f"[{text}]" if argument["indexed"] else text

    ours = {entry["name"]: ", ".join(map(shown, entry["inputs"])) for entry in entries(build, "event")}
    assert ours == EVENTS
    assert not any("[string" in arguments for arguments in ours.values())


@pytest.mark.parametrize("build", BUILDS)
def test_a_contract_is_made_without_arguments_and_takes_no_money_but_for_an_upgrade(build: str) -> None:
    assert [entry["inputs"] for entry in entries(build, "constructor")] in ([], [[]])
    payable = [entry["name"] for entry in entries(build, "function") if entry["stateMutability"] == "payable"]
    assert payable == ["upgradeToAndCall"]
    assert entries(build, "receive") == entries(build, "fallback") == []


@pytest.mark.parametrize("build", [*BUILDS, "ERC1967Proxy"])
def test_a_build_says_how_it_was_made_and_is_small_enough_for_a_chain(build: str) -> None:
    made = artefact(build)["compiler"]
    assert made["solc"].startswith("0.8.29+")
    assert (made["optimizerRuns"], made["evmVersion"]) == (1_000_000, "cancun")
    assert 0 < artefact(build)["codeSizeBytes"] <= 24_576
    assert re.fullmatch(r"0x([0-9a-f]{2})+", artefact(build)["bytecode"])


def test_both_stage_counts_keep_their_state_in_the_same_places() -> None:
    assert artefact("LockedSwarmCoordinator-3")["storage"] == artefact("LockedSwarmCoordinator-1")["storage"]


def test_the_documented_gas_is_what_a_run_measures() -> None:
    """After a change that is meant: make contracts-gas."""
    assert documented() == table()
