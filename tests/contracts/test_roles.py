"""Roles, initialisation and upgrades."""

import pytest
from web3 import Web3

from tests.contracts.chain import Said, Swarm, deploy, mined

ROLES = ["OWNER_ROLE", "STAGE_MANAGER_ROLE", "BOOTNODE_MANAGER_ROLE", "MEMBERSHIP_MANAGER_ROLE"]
# Where ERC-1967 keeps the address of the implementation.
IMPLEMENTATION_SLOT = 0x360894A13BA1A3210667C828492DB98DCA3E2076CC3735A920A3CA505D382BBC


def implementation_of(swarm: Swarm) -> str:
    return Web3.to_checksum_address(swarm.w3.eth.get_storage_at(swarm.contract.address, IMPLEMENTATION_SLOT)[-20:])


def test_the_first_owner_has_the_three_roles_of_upstream(swarm: Swarm) -> None:
    assert [swarm.ask("hasRole", swarm.role(name), swarm.owner) for name in ROLES] == [True, True, True, False]
    assert not any(swarm.ask("hasRole", swarm.role(name), swarm.alice) for name in ROLES)


def test_initialisation_says_which_roles_it_granted(w3: Web3) -> None:
    bare = Swarm(w3, deploy(w3, "SwarmCoordinator-3"), 3)
    said = bare.send(bare.alice, "initialize", bare.bob)
    granted = [Said("RoleGranted", (bare.role(name), bare.bob, bare.alice)) for name in ROLES[:3]]
    assert said == [*granted, Said("Initialized", (1,))]
    assert bare.ask("hasRole", bare.role("OWNER_ROLE"), bare.bob)


def test_a_swarm_is_initialised_only_once(swarm: Swarm) -> None:
    assert swarm.refusal(swarm.alice, "initialize", swarm.alice) == "InvalidInitialization"
    assert swarm.refusal(swarm.owner, "initialize", swarm.owner) == "InvalidInitialization"
    assert not swarm.ask("hasRole", swarm.role("OWNER_ROLE"), swarm.alice)


def test_nobody_initialises_the_implementation_behind_a_proxy(w3: Web3, implementation) -> None:
    for stages in (3, 1):
        behind = Swarm(w3, implementation(stages), stages)
        assert behind.refusal(behind.alice, "initialize", behind.alice) == "InvalidInitialization"


@pytest.mark.parametrize("name", ROLES)
def test_an_owner_grants_and_revokes_any_role(swarm: Swarm, name: str) -> None:
    role = swarm.role(name)
    assert swarm.send(swarm.owner, "grantRole", role, swarm.alice) == [
        Said("RoleGranted", (role, swarm.alice, swarm.owner))
    ]
    assert swarm.ask("hasRole", role, swarm.alice)
    assert swarm.send(swarm.owner, "revokeRole", role, swarm.alice) == [
        Said("RoleRevoked", (role, swarm.alice, swarm.owner))
    ]
    assert not swarm.ask("hasRole", role, swarm.alice)


def test_nobody_else_grants_or_revokes(swarm: Swarm) -> None:
    for name in ROLES[1:]:
        swarm.send(swarm.owner, "grantRole", swarm.role(name), swarm.alice)
    owner_role = swarm.role("OWNER_ROLE")
    assert swarm.refusal(swarm.alice, "grantRole", owner_role, swarm.alice) == "OnlyOwner"
    assert swarm.refusal(swarm.alice, "revokeRole", owner_role, swarm.owner) == "OnlyOwner"
    assert swarm.ask("hasRole", owner_role, swarm.owner)


def test_owners_may_revoke_each_other_and_the_last_one_itself(swarm: Swarm) -> None:
    role = swarm.role("OWNER_ROLE")
    swarm.send(swarm.owner, "grantRole", role, swarm.alice)
    swarm.send(swarm.alice, "revokeRole", role, swarm.owner)
    assert swarm.refusal(swarm.owner, "grantRole", role, swarm.bob) == "OnlyOwner"
    swarm.send(swarm.alice, "revokeRole", role, swarm.alice)
    assert swarm.refusal(swarm.alice, "grantRole", role, swarm.alice) == "OnlyOwner"


# Upgrades


def test_an_upgrade_switches_the_implementation_and_keeps_the_state(w3: Web3, swarm: Swarm) -> None:
    swarm.register(swarm.alice, "p")
    swarm.move_on(2)
    other = deploy(w3, f"LockedSwarmCoordinator-{4 - swarm.stages}")
    assert implementation_of(swarm) != other.address
    place = swarm.place()
    assert swarm.send(swarm.owner, "upgradeToAndCall", other.address, b"") == [Said("Upgraded", (other.address,))]
    assert implementation_of(swarm) == other.address
    assert swarm.ask("stageCount") == 4 - swarm.stages  # the code of the other build answers
    assert (swarm.place(), swarm.ask("getPeerId", [swarm.alice])) == (place, [["p"]])


def test_an_upgrade_may_call_the_new_implementation(w3: Web3, swarm: Swarm) -> None:
    other = deploy(w3, f"LockedSwarmCoordinator-{swarm.stages}")
    call = other.encode_abi("setRoundPolicy", args=[4, 5])
    said = swarm.send(swarm.owner, "upgradeToAndCall", other.address, call)
    assert said == [Said("Upgraded", (other.address,)), Said("RoundPolicyChanged", (swarm.owner, 4, 5))]


def test_only_an_owner_upgrades(w3: Web3, swarm: Swarm) -> None:
    before = implementation_of(swarm)
    other = deploy(w3, f"LockedSwarmCoordinator-{swarm.stages}")
    assert swarm.refusal(swarm.alice, "upgradeToAndCall", other.address, b"") == "OnlyOwner"
    assert implementation_of(swarm) == before


def test_an_upgrade_to_what_is_no_implementation_is_refused(w3: Web3, swarm: Swarm) -> None:
    before = implementation_of(swarm)
    refused = [
        swarm.refusal(swarm.owner, "upgradeToAndCall", place, b"") for place in (swarm.alice, swarm.contract.address)
    ]
    # An account without code answers nothing, which is refused without an error; a proxy refuses to name its slot.
    assert refused == ["execution reverted", "ERC1967InvalidImplementation"]
    assert implementation_of(swarm) == before


# Runtime code: PUSH32 <word>, PUSH0, MSTORE, PUSH1 32, PUSH0, RETURN. It answers every call with one word.
ANSWERING = "7f{:064x}5f5260205ff3"


def put_code(w3: Web3, runtime: str) -> str:
    """Deploys runtime code as it is. The prefix copies what follows its 10 bytes and returns it."""
    size = len(runtime) // 2
    creation = f"60{size:02x}600a5f3960{size:02x}5ff3{runtime}"
    receipt = mined(w3, w3.eth.send_transaction({"data": f"0x{creation}", "gas": 500_000}))
    address: str = receipt["contractAddress"]
    assert w3.eth.get_code(address).hex() == runtime
    return address


def test_an_implementation_must_name_the_slot_of_erc_1967(w3: Web3, swarm: Swarm) -> None:
    wrong = put_code(w3, ANSWERING.format(1))
    assert swarm.refusal(swarm.owner, "upgradeToAndCall", wrong, b"") == "UUPSUnsupportedProxiableUUID"
    right = put_code(w3, ANSWERING.format(IMPLEMENTATION_SLOT))
    assert swarm.send(swarm.owner, "upgradeToAndCall", right, b"") == [Said("Upgraded", (right,))]


def test_money_without_a_call_is_refused_in_an_upgrade(w3: Web3, swarm: Swarm) -> None:
    other = deploy(w3, f"LockedSwarmCoordinator-{swarm.stages}")
    call = swarm.call("upgradeToAndCall", other.address, b"")
    assert swarm.reason(swarm.owner, call, value=1) == "ERC1967NonPayable"


def test_an_upgrade_whose_call_fails_does_not_happen(w3: Web3, swarm: Swarm) -> None:
    before = implementation_of(swarm)
    other = deploy(w3, f"LockedSwarmCoordinator-{swarm.stages}")
    again = other.encode_abi("initialize", args=[swarm.owner])
    assert swarm.refusal(swarm.owner, "upgradeToAndCall", other.address, again) == "InvalidInitialization"
    assert swarm.refusal(swarm.owner, "upgradeToAndCall", other.address, b"\1\2\3\4") == "FailedCall"
    assert implementation_of(swarm) == before


def test_an_implementation_is_upgraded_through_a_proxy_only(w3: Web3, implementation) -> None:
    behind = Swarm(w3, implementation(3), 3)
    refused = behind.refusal(behind.owner, "upgradeToAndCall", behind.contract.address, b"")
    assert refused == "UUPSUnauthorizedCallContext"


def test_an_implementation_names_its_slot_and_a_proxy_does_not(swarm: Swarm, implementation) -> None:
    behind = Swarm(swarm.w3, implementation(swarm.stages), swarm.stages)
    assert int.from_bytes(behind.ask("proxiableUUID")) == IMPLEMENTATION_SLOT
    assert swarm.reason(swarm.owner, swarm.call("proxiableUUID")) == "UUPSUnauthorizedCallContext"
    assert swarm.ask("UPGRADE_INTERFACE_VERSION") == "5.0.0"
