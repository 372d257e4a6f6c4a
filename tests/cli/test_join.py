"""Joining a swarm: the manifest is checked, a node is made, and what exists stays as it is."""

from pathlib import Path

import pytest

from swarmd.animals import animal_name
from swarmd.config import load_config, make_core_settings
from swarmd.dht.identity.identity import create_identity, load_identity, read_rl_swarm_name, write_rl_swarm_name
from swarmd.dht.wire.records import PROTOCOL
from swarmd.errors import ExitCode
from tests.anvil import running_anvil
from tests.cli.owning import LISTEN, STRANGER, OwnChain, Shell, files
from tests.dht.making import rsa_file


@pytest.fixture
def manifest(shell: Shell) -> Path:
    """Of a swarm without a chain."""
    shell.well("swarm", "new", "Digits", "--dir", shell.root / "a")
    return shell.root / "a" / "swarm.toml"


def test_a_node_is_made(shell: Shell, manifest: Path) -> None:
    b = shell.root / "b"
    shown = shell.well("join", manifest, "--dir", b, "--name", "bob")
    config, swarm = load_config(b / "config.toml"), shell.manifest("a")
    assert (config.name, config.role, config.swarm.id) == ("bob", "follower", swarm.id)
    assert config.swarm.coordinator == swarm.creator
    assert config.dht.bootstrap == swarm.bootnodes
    assert config.dht.peer == load_identity(b / "identity.key").peer_id
    assert f"swarmd run --config {b / 'config.toml'}" in shown
    assert shell("config", "check", b / "config.toml").code == 0


def test_an_identity_from_rl_swarm_keeps_its_name_there_where_it_is_known(shell: Shell, manifest: Path) -> None:
    key = shell.root / "swarm.key"
    rsa_file(key)
    peer = load_identity(key).peer_id
    own = animal_name(peer)
    shown = shell.well("join", manifest, "--dir", shell.root / "b", "--identity", key)
    assert f"name: {own}; its name in RL Swarm is not known here, {own} by swarmd's own words" in shown
    assert "--name" in shown and load_config(shell.root / "b" / "config.toml").name == ""
    write_rl_swarm_name(key, peer, "tall stubby worm")
    shown = shell.well("join", manifest, "--dir", shell.root / "c", "--identity", key)
    assert f"name: tall stubby worm; tall stubby worm in RL Swarm, {own} by swarmd's own words" in shown
    assert load_config(shell.root / "c" / "config.toml").name == "tall stubby worm"
    shown = shell.well("join", manifest, "--dir", shell.root / "d", "--identity", key, "--name", "bob")
    assert f"name: bob; tall stubby worm in RL Swarm, {own}" in shown
    assert load_config(shell.root / "d" / "config.toml").name == "bob"
    write_rl_swarm_name(key, "another", "tall stubby worm")
    assert read_rl_swarm_name(key, peer) == ""


def test_the_commands_that_are_named_can_be_run_where_a_path_has_blanks(shell: Shell) -> None:
    shown = shell.well("swarm", "new", "Digits", "--dir", shell.root / "a b")
    assert f"swarmd run --config '{shell.root / 'a b' / 'config.toml'}'" in shown
    shown = shell.well("join", shell.root / "a b" / "swarm.toml", "--dir", shell.root / "c d")
    assert shown.endswith(f"swarmd run --config '{shell.root / 'c d' / 'config.toml'}'\n")
    shown = shell.well("swarm", "scaffold", "sums", "--dir", shell.root / "e f")
    assert f"swarmd local --kind '{shell.root / 'e f' / 'config.toml'}' --rounds 4" in shown


def test_joining_twice_changes_nothing(shell: Shell, manifest: Path) -> None:
    shell.well("join", manifest, "--dir", shell.root / "b")
    before = files(shell.root / "b")
    shown = shell.well("join", manifest, "--dir", shell.root / "b", "--name", "else", "--listen", LISTEN)
    assert f"{shell.root / 'b' / 'config.toml'}: exists, kept as it is" in shown
    assert files(shell.root / "b") == before


def test_a_newer_manifest_is_told_and_the_old_one_kept(shell: Shell, manifest: Path) -> None:
    shell.well("join", manifest, "--dir", shell.root / "b")
    before = files(shell.root / "b")
    shell.well("swarm", "add-bootnode", manifest, f"/ip4/192.0.2.1/tcp/1/p2p/{STRANGER}")
    kept = shell.root / "b" / "swarm.toml"
    assert f"note: {kept} differs from the one that was given" in shell.well(
        "join", manifest, "--dir", shell.root / "b"
    )
    assert files(shell.root / "b") == before
    kept.write_bytes(manifest.read_bytes())
    assert "differs from" not in shell.well("join", manifest, "--dir", shell.root / "b")
    kept.unlink()
    assert f"{kept}: written" in shell.well("join", manifest, "--dir", shell.root / "b")


@pytest.mark.parametrize("own", [True, False])
def test_a_swarm_that_was_joined_is_not_taken_for_ones_own(shell: Shell, manifest: Path, own: bool) -> None:
    """Even where the key lies elsewhere, and so nothing but the configuration says whose node it is."""
    b, key = shell.root / "b", shell.root / "own.key"
    create_identity(key)
    shell.well("join", manifest, "--dir", b, *(("--identity", key) if own else ()))
    before = files(b)
    assert "is of the swarm" in shell.fails(ExitCode.BAD_CONFIG, "swarm", "new", "Digits", "--dir", b)
    assert files(b) == before


def test_an_identity_of_ones_own(shell: Shell, manifest: Path) -> None:
    key = shell.root / "own.key"
    peer = create_identity(key).peer_id
    b = shell.root / "b"
    shell.well("join", manifest, "--dir", b, "--identity", key, "--data", "state")
    config = load_config(b / "config.toml")
    assert (config.dht.peer, config.dht.identity, config.data) == (peer, str(key), "state")
    assert not (b / "identity.key").exists()
    before = files(b)
    shell.well("join", manifest, "--dir", b)
    assert files(b) == before


def test_an_altered_manifest_makes_nothing(shell: Shell, manifest: Path) -> None:
    manifest.write_text(manifest.read_text().replace('name = "Digits"', 'name = "Digest"'))
    told = shell.fails(ExitCode.BAD_DATA, "join", manifest, "--dir", shell.root / "b")
    assert "the signature is not the creator's" in told
    assert not (shell.root / "b").exists()


def test_the_creator_may_be_demanded(shell: Shell, manifest: Path) -> None:
    told = shell.fails(ExitCode.BAD_DATA, "join", manifest, "--dir", shell.root / "b", "--creator", STRANGER)
    assert "was created by" in told
    assert not (shell.root / "b").exists()
    shell.well("join", manifest, "--dir", shell.root / "b", "--creator", shell.manifest("a").creator)


def test_a_recipe_that_was_changed_by_hand_is_told(shell: Shell, manifest: Path) -> None:
    shell.well("join", manifest, "--dir", shell.root / "b")
    config = shell.root / "b" / "config.toml"
    config.write_text(config.read_text().replace("steps = 40", "steps = 4"))
    assert "may train something else" in shell.well("join", manifest, "--dir", shell.root / "b")


def test_what_a_manifest_asks_for_programs_beyond_this_nodes_bounds_is_told(shell: Shell) -> None:
    recipe = shell.root / "recipe.toml"
    recipe.write_text(
        'role = "coordinator"\n[swarm]\nid = "x"\nkind = "code"\n'
        "options = {limits = {memory_bytes = 68719476736, cpu_s = 3600}, rerun_s = 3600.0, "
        "own_limits = {cpu_s = 3600}}\n"
    )
    shell.well("swarm", "new", "Greedy", "--dir", shell.root / "a", "--config", recipe)
    assert "own_limits" not in (shell.root / "a" / "swarm.toml").read_text()
    assert load_config(shell.root / "a" / "config.toml").swarm.options["own_limits"] == {"cpu_s": 3600}
    shown = shell.well("join", shell.root / "a" / "swarm.toml", "--dir", shell.root / "b")
    assert "note: the swarm asks for limits.memory_bytes = 6.87195e+10, this node gives programs" in shown
    assert "(swarm.options.own_limits.cpu_s)" in shown and "(swarm.options.own_limits.stage_s)" in shown


def test_a_closed_swarm_says_what_its_creator_must_do(shell: Shell) -> None:
    shell.well("swarm", "new", "Digits", "--dir", shell.root / "a", "--closed")
    path, b = shell.root / "a" / "swarm.toml", shell.root / "b"
    shown = shell.well("join", path, "--dir", b)
    peer = load_config(b / "config.toml").dht.peer
    assert f"swarmd swarm allow swarm.toml {peer}" in shown
    shell.well("swarm", "allow", path, peer)
    shell.well("join", path, "--dir", shell.root / "c", "--identity", b / "identity.key")
    assert load_config(shell.root / "c" / "config.toml").dht.members == shell.manifest("a").members


# --- on a chain ---


def test_an_account_without_coins_registers_later(shell: Shell, chain: OwnChain) -> None:
    path, b = chain.make(shell) / "swarm.toml", shell.root / "b"
    shown = shell.well("join", path, "--dir", b)
    assert "has 0 coins: send it some" in shown and "registers by itself" in shown
    chain.fund(b, 1e-9)
    assert "not registered yet" in shell.well("join", path, "--dir", b)
    address = chain.fund(b)
    assert "registered: in block" in shell.well("join", path, "--dir", b)
    before = files(b)
    assert f"registered: this node is, to {address}" in shell.well("join", path, "--dir", b)
    assert (files(b), chain.sent_by(b)) == (before, 1)
    config = load_config(b / "config.toml")
    assert config.chain is not None
    assert (config.chain.sender, config.chain.keystore, config.chain.drive) == ("wallet", "account.json", "policy")


def test_bootnodes_of_the_contract_are_taken_along(shell: Shell, chain: OwnChain) -> None:
    path, address = chain.make(shell) / "swarm.toml", f"/ip4/192.0.2.1/tcp/1/p2p/{STRANGER}"
    shell.well("swarm", "add-bootnode", path, address)
    shell.well("join", path, "--dir", shell.root / "b")
    assert load_config(shell.root / "b" / "config.toml").dht.bootstrap == (*shell.manifest("a").bootnodes, address)


def test_a_closed_swarm_on_a_chain(shell: Shell, chain: OwnChain) -> None:
    path, b = chain.make(shell, "--closed") / "swarm.toml", shell.root / "b"
    shell.well("join", path, "--dir", b)
    chain.fund(b)
    peer = load_config(b / "config.toml").dht.peer
    shown = shell.well("join", path, "--dir", b)
    assert f"swarmd swarm allow swarm.toml {peer}" in shown and "registered: in block" not in shown
    assert chain.sent_by(b) == 0
    shell.well("swarm", "allow", path, peer)
    assert "registered: in block" in shell.well("join", path, "--dir", b)


def test_an_identity_that_another_account_registered(shell: Shell, chain: OwnChain) -> None:
    path, b, c = chain.make(shell) / "swarm.toml", shell.root / "b", shell.root / "c"
    shell.well("join", path, "--dir", b)
    chain.fund(b)
    shell.well("join", path, "--dir", b)
    told = shell.fails(ExitCode.CHAIN_CONFLICT, "join", path, "--dir", c, "--identity", b / "identity.key")
    assert f"is registered to the account {chain.address(b)}" in told
    shown = shell.well(
        *("join", path, "--dir", shell.root / "d", "--identity", b / "identity.key", "--account", b / "account.json")
    )
    assert "registered: this node is" in shown


def test_through_a_signer(shell: Shell, chain: OwnChain) -> None:
    path, b = chain.make(shell) / "swarm.toml", shell.root / "b"
    url = "http://127.0.0.1:3000/api"
    told = shell.fails(ExitCode.BAD_CONFIG, "join", path, "--dir", b, "--signer", url)
    assert "--signer and --org go together" in told
    shell.well("join", path, "--dir", b, "--signer", url, "--org", "org-1")
    config = load_config(b / "config.toml").chain
    assert config is not None
    assert (config.sender, config.proxy.url, config.proxy.org) == ("proxy", url, "org-1")
    assert not (b / "account.json").exists()
    before = files(b)
    shell.well("join", path, "--dir", b)
    assert files(b) == before


def test_another_chain_than_the_manifests(shell: Shell, chain: OwnChain) -> None:
    path = chain.make(shell) / "swarm.toml"
    with running_anvil("--chain-id", "100") as url:
        told = shell.fails(ExitCode.CHAIN_CONFLICT, "join", path, "--dir", shell.root / "b", "--rpc", url)
        assert "is a node of chain 100" in told
    with running_anvil() as url:
        told = shell.fails(ExitCode.CHAIN_CONFLICT, "join", path, "--dir", shell.root / "b", "--rpc", url)
        assert "there is no contract at" in told
    assert not (shell.root / "b" / "config.toml").exists()


def test_a_swarm_that_asks_for_invitations(shell: Shell) -> None:
    a, key = shell.root / "a", shell.root / "own.key"
    shell.well("swarm", "new", "Digits", "--dir", a, "--invited")
    config, guest = load_config(a / "config.toml"), create_identity(key).peer_id
    assert config.dht.admission == "invitation"
    invitation = shell.well("swarm", "invite", guest, "--dir", a).strip()
    shell.well("join", a / "swarm.toml", "--dir", shell.root / "b", "--identity", key, "--invitation", invitation)
    joined = load_config(shell.root / "b" / "config.toml").dht
    assert (joined.admission, joined.invitation) == ("invitation", invitation)
    further = create_identity(shell.root / "further.key").peer_id
    others = shell.well("swarm", "invite", further, "--dir", shell.root / "b", "--days", "1").strip()
    assert others != invitation, "a guest of the creator invites as well"
    look_at_the_list(shell, guest, further)
    refused = shell("join", a / "swarm.toml", "--dir", shell.root / "c", "--invitation", others)
    assert refused.code == ExitCode.BAD_CONFIG and "has not invited" in refused.err
    shown = shell.well("join", a / "swarm.toml", "--dir", shell.root / "d")
    assert "swarmd swarm invite 12D3Koo" in shown
    assert shell("swarm", "allow", a / "swarm.toml", guest).code == ExitCode.BAD_CONFIG


def test_an_invitation_for_a_node_that_is_there_is_not_lost(shell: Shell) -> None:
    """A guest's first `join` makes the key that it is invited by; nothing that exists is changed by the second."""
    a, b = shell.root / "a", shell.root / "b"
    shell.well("swarm", "new", "Friends", "--dir", a, "--invited")
    join, config = ("join", a / "swarm.toml", "--dir", b), b / "config.toml"
    first = shell.well(*join)
    guest = load_identity(b / "identity.key").peer_id
    assert f"swarmd swarm invite {guest}" in first and f'goes into {config}, below [dht]: invitation = "..."' in first
    line = f'invitation = "{shell.well("swarm", "invite", guest, "--dir", a).strip()}"'
    assert f"{config} does not have this invitation" in (said := shell.well(*join, "--invitation", line[14:-1]))
    assert line in said and line not in config.read_text()
    config.write_text(config.read_text().replace("[dht]\n", f"[dht]\n{line}\n"))
    assert "note:" not in shell.well(*join, "--invitation", line[14:-1]) + shell.well(*join)


def look_at_the_list(shell: Shell, guest: str, further: str) -> None:
    """The creator has invited the guest, who has invited a further one."""
    a, b = shell.root / "a", shell.root / "b"
    own, made = (
        shell.well("swarm", "invite", "--list", "--dir", a).split(),
        shell.well("swarm", "invite", "--list", "--dir", b),
    )
    assert (own[1], own[2]) == ("holds", guest) and "without an end" in " ".join(own)
    id_, state, whom, *when = made.split()
    assert (state, whom) == ("holds", further) and "until" in when
    assert "was not made here" in shell.fails(ExitCode.BAD_CONFIG, "swarm", "invite", "--withdraw", own[0], "--dir", b)
    assert "is not the id of an invitation" in shell.fails(
        ExitCode.BAD_CONFIG, "swarm", "invite", "--withdraw", "nothing", "--dir", b
    )
    assert f"the invitation of {further} is withdrawn" in shell.well("swarm", "invite", "--withdraw", id_, "--dir", b)
    assert shell.well("swarm", "invite", "--list", "--dir", b).split()[1] == "withdrawn"
    shell.well("swarm", "invite", "--withdraw", id_, "--dir", a)
    assert "made elsewhere" in shell.well("swarm", "invite", "--list", "--dir", a)
    assert "name the peer" in shell.fails(ExitCode.BAD_CONFIG, "swarm", "invite", further, "--list", "--dir", a)


def test_a_swarm_that_asks_for_work(shell: Shell) -> None:
    a = shell.root / "a"
    shell.well("swarm", "new", "Digits", "--dir", a, "--work-bits", "20")
    shell.well("join", a / "swarm.toml", "--dir", shell.root / "b")
    joined = load_config(shell.root / "b" / "config.toml").dht
    assert (joined.admission, joined.work_bits) == ("work", 20)
    assert shell("swarm", "invite", STRANGER, "--dir", a).code == ExitCode.BAD_CONFIG
    both = shell("swarm", "new", "Digits", "--dir", shell.root / "c", "--work-bits", "20", "--invited")
    assert both.code == ExitCode.BAD_CONFIG and "exclude one another" in both.err


def test_a_large_swarm_on_a_chain_has_the_shards_that_its_recipe_says(shell: Shell, chain: OwnChain) -> None:
    manifest = chain.make(shell, "--large") / "swarm.toml"
    assert shell.manifest("a").chain.shards == 16
    shell.well("join", manifest, "--dir", shell.root / "b", "--rpc", chain.url)
    for name in ("a", "b"):
        config = load_config(shell.root / name / "config.toml")
        assert config.chain is not None and config.chain.shards == 16


def test_a_manifest_of_another_protocol_is_refused(shell: Shell, manifest: Path) -> None:
    newer = f"protocol = {PROTOCOL + 1}\n" + manifest.read_text()
    (shell.root / "newer.toml").write_text(newer)
    refused = shell("join", shell.root / "newer.toml", "--dir", shell.root / "b")
    assert (
        refused.code == ExitCode.BAD_DATA
        and f"has protocol {PROTOCOL + 1}, this swarmd has protocol {PROTOCOL}" in refused.err
    )


def test_a_swarm_whose_nodes_average_their_weights(shell: Shell) -> None:
    a, b = shell.root / "a", shell.root / "b"
    shell.well("swarm", "new", "Digits", "--dir", a, "--closed", "--average-weights", "2")
    for verb in ("check", "status"):
        assert "weights: averaged with other members' every 2 rounds" in shell.well("swarm", verb, a / "swarm.toml")
    assert '"average_weights_every": 2' in shell.well("swarm", "status", a / "swarm.toml", "--json")
    shown = shell.well("join", a / "swarm.toml", "--dir", b)
    assert "average_weights_every = 0" in shown and "(coordinator, credited)" in shown
    for directory in (a, b):
        config = load_config(directory / "config.toml")
        assert make_core_settings(config, "me").average_rounds == 2
        assert shell("config", "check", directory / "config.toml").code == 0
    own = (b / "config.toml").read_text().replace("average_weights_every = 2", "average_weights_every = 0")
    (b / "config.toml").write_text(own)
    assert "averages" not in shell.well("join", a / "swarm.toml", "--dir", b)
    assert load_config(b / "config.toml").training.average_weights_every == 0, "it is the node's own choice"


def test_in_a_swarm_that_anybody_may_join_no_weights_are_averaged_by_its_manifest(shell: Shell) -> None:
    a = shell.root / "a"
    told = shell.fails(ExitCode.BAD_CONFIG, "swarm", "new", "Digits", "--dir", a, "--average-weights", "2")
    assert "--closed or --invited" in told and not a.exists()
    shell.well("swarm", "new", "Digits", "--dir", a, "--closed", "--average-weights", "2")
    before = files(a)
    told = shell.fails(ExitCode.BAD_DATA, "swarm", "open", a / "swarm.toml")
    assert 'does not go with membership = "open"' in told and files(a) == before
