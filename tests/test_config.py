"""The configuration file: strict, and its errors name the key and the fix."""

import pytest

from swarmd.config import decode, encode, make_core_settings, needs_peer_weights, parse_config
from swarmd.core.values import PeerSlots
from swarmd.errors import ConfigError
from swarmd.manifest import recipe_of

COORDINATOR = 'role = "coordinator"\n[swarm]\nid = "s"\n'
ON_CHAIN = COORDINATOR + f'[chain]\nrpc = ["http://127.0.0.1:1"]\nchain_id = 1\ncontract = "0x{"a1" * 20}"\n'
FOLLOWER = '[swarm]\nid = "s"\ncoordinator = "peer-c"\n[dht]\nbootstrap = ["/ip4/127.0.0.1/tcp/1/p2p/peer-c"]\n'


def refused(text: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        parse_config(text, "node.toml")
    assert caught.value.message.startswith("node.toml")
    return caught.value


def test_the_least_a_file_needs() -> None:
    assert parse_config(COORDINATOR, "node.toml").training.steps == 40
    assert parse_config(FOLLOWER, "node.toml").role == "follower"


@pytest.mark.parametrize(
    ("text", "key", "fix"),
    [
        ('nam = "x"\n' + COORDINATOR, "'nam'", "Did you mean name?"),
        (COORDINATOR + "[dht]\nlisten_on = []", "'dht.listen_on'", "Did you mean dht.listen?"),
        (COORDINATOR + "[quux]\na = 1", "'quux'", "Valid keys here: "),
        (COORDINATOR + 'tasks = [{name = "a", wait = 2}]', "'swarm.tasks[0].wait'", "swarm.tasks[0].weight"),
    ],
)
def test_an_unknown_key_is_named_with_the_nearest(text: str, key: str, fix: str) -> None:
    error = refused(text)
    assert f"unknown key {key}" in error.message
    assert fix in error.fix


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (COORDINATOR + '[training]\nsteps = "many"', "training.steps: Expected `int`, got `str`"),
        (
            COORDINATOR + '[training]\nmodel = "a/b"\nrevision = "../x"',
            "training.revision: it is not of the right",
        ),
        (COORDINATOR + '[training]\nrevision = "v1"', "training.revision does not go with training.model = 'embedded'"),
        (COORDINATOR + "[training]\ngenerations = 65", "training.generations: Expected `int` <= 64"),
        (COORDINATOR + f"[training]\nsteps = {10**20}", f"training.steps: Expected `int` <= {2**63 - 1}"),
        (COORDINATOR + "[round]\ntrain_s = inf", "round.train_s: Expected `float` <= 1000000000.0"),
        (COORDINATOR + "[training]\nbeta = nan", "training.beta: Expected `float` >= 0.0"),
        (
            COORDINATOR + '[training]\nweights_from = ["anybody"]',
            "training.weights_from[0]: it is not of the right",
        ),
        (COORDINATOR + '[dht]\ninvitation = "two words"', "dht.invitation: it is not of the right"),
        (COORDINATOR + "[coordinator]\nquorum = 1.5", "coordinator.quorum: Expected `float` <= 1.0"),
        (ON_CHAIN + "shards = 12", "chain.shards: Invalid enum value 12"),
        ('role = "coordinator"\n[swarm]\nid = "a b"', "swarm.id"),
        ('role = "coordinator"\n[swarm]\nid = "a\\n"', "swarm.id: it is not of the right"),
        (ON_CHAIN.replace('a1"', 'a1\\n"') + "shards = 0", "chain.contract: it is not of the right"),
        ('role = "coordinator"', "swarm is missing"),
        (FOLLOWER.replace("coordinator", "#"), "a follower needs swarm.coordinator"),
        (FOLLOWER.replace("bootstrap", "#"), "a follower needs dht.bootstrap"),
        (COORDINATOR + "[training]\nquestions = 4\npeer_questions = 4", "must be below training.questions"),
        (COORDINATOR + "[training]\nquestions = 4\npeer_questions = 1\nreplay_questions = 3", "must be below"),
        (COORDINATOR + '[training]\npeer_questions = "all"', "peer_questions: Invalid enum value 'all'"),
        (COORDINATOR + '[training]\npeer_questions = "auto"\npeer_loss = "success-gated"', "does not go with"),
        (COORDINATOR + '[training]\nquestions = 1\npeer_questions = "auto"', "must be below training.questions (1)"),
        (COORDINATOR + '[training]\nquantization = "4bit"', "needs adapters"),
        (COORDINATOR + '[training]\nweights_from = []\ncatch_up = "weights"', "weights_from is empty"),
        (COORDINATOR + "[training]\nweights_from = []\naverage_weights_every = 2", "weights_from is empty"),
        (ON_CHAIN + 'shards = 4\nvotes = "reported"', "nobody reads the reports of all"),
        (COORDINATOR + '[training]\nschedule = "cosine"', "training.schedule_steps"),
        (COORDINATOR + "[training]\nstaleness_rounds = 0", "training.staleness_rounds is 0"),
        (COORDINATOR + "[training]\noverlap = 2", "training.overlap: Expected `int` <= 1"),
        (COORDINATOR + "[training]\noverlap = 1\nprocesses = 2", "training.overlap goes with"),
        (
            COORDINATOR + '[training]\noverlap = 1\nquantization = "8bit"\nlora = {rank = 8}',
            "training.overlap goes with",
        ),
        (COORDINATOR + '[training]\noverlap = 1\nvllm = {mode = "auto"}', "training.overlap goes with"),
        (
            COORDINATOR + '[training]\noverlap = 1\ntemperature = 0.7\nvllm = {mode = "server"}',
            "only at training.temperature = 1",
        ),
        ('data = "a\\u0000b"\n' + COORDINATOR, "data has a NUL character in it"),
        (COORDINATOR + '[dht]\nlisten = ["/dns4/\\u0000/tcp/1"]', "dht.listen[0] has a NUL character in it"),
        (COORDINATOR + '[swarm.options]\ndata = "a\\u0000.jsonl"', "swarm.options.data has a NUL character in it"),
        (COORDINATOR + '[swarm.options]\nx = [{a = "\\u0000"}]', "swarm.options.x[0].a has a NUL character in it"),
        (COORDINATOR + "[dht]\nrecord_s = 4000.0", "dht.record_s: Expected `float` <= 3600.0"),
        ('name = "a\\tb"\n' + COORDINATOR, "name: 'a\\tb' has characters that cannot be printed, and peers refuse it"),
        (COORDINATOR + f"[swarm.options]\na = [{{b = {2**64}}}]", "swarm.options.a[0].b is an integer of more"),
        (COORDINATOR + f'tasks = [{{name = "t", config = {{n = {-(2**63) - 1}}}}}]', "swarm.tasks[0].config.n is an"),
    ],
)
def test_wrong_values_and_those_that_do_not_go_together_are_named(text: str, told: str) -> None:
    assert told in refused(text).message


@pytest.mark.parametrize("others", ["stages = 3\n[training]", "[training]\npeer_questions = 0"])
def test_no_round_may_pass_where_rounds_have_stages_or_nothing_is_taken(others: str) -> None:
    assert parse_config(COORDINATOR + f"{others}\nstaleness_rounds = 0", "node.toml").training.staleness_rounds == 0


@pytest.mark.parametrize(
    ("settings", "slots"),
    [
        ("", None),
        ('peer_questions = "auto"', PeerSlots(16, 4, 15)),
        ('peer_questions = "auto"\nquestions = 8\nreplay_questions = 3\nprocesses = 2', PeerSlots(8, 2, 2)),
    ],
)
def test_peers_part_is_chosen_between_bounds_that_leave_every_process_a_group(
    settings: str, slots: PeerSlots | None
) -> None:
    config = parse_config(f"{COORDINATOR}[training]\n{settings}", "node.toml")
    assert make_core_settings(config, "me").peer_slots == slots
    assert recipe_of(config).peer_questions == (4 if slots is None else slots.usual), "a manifest has a number"


@pytest.mark.parametrize("text", [COORDINATOR, FOLLOWER])
def test_a_worker_gets_the_same_configuration(text: str) -> None:
    config = parse_config(text, "node.toml")
    assert decode(encode(config)) == config
    with pytest.raises(ConfigError, match="unreadable configuration"):
        decode(b"\xc1")


@pytest.mark.parametrize(
    ("text", "rounds"),
    [
        (FOLLOWER + '[training]\ncatch_up = "weights"', 3),
        (FOLLOWER + '[training]\ncatch_up = "none"', 0),
        (COORDINATOR + '[training]\ncatch_up = "weights"', 0),
        (FOLLOWER + '[training]\ncatch_up = "weights"\nheld_out_questions = 0', 0),
        (FOLLOWER + '[training]\ncatch_up = "weights"\nprocesses = 2', 0),
    ],
)
def test_only_a_follower_that_can_measure_and_load_them_takes_weights(text: str, rounds: int) -> None:
    assert make_core_settings(parse_config(text, "node.toml"), "me").catch_up_rounds == rounds


@pytest.mark.parametrize(
    ("text", "rounds"),
    [
        (COORDINATOR, 2),
        (FOLLOWER, 2),
        (FOLLOWER + "[training]\nheld_out_questions = 0", 0),
        (FOLLOWER + "[training]\nprocesses = 2", 0),
    ],
)
def test_only_who_can_measure_and_load_weights_averages_its_own(text: str, rounds: int) -> None:
    parted = text if "[training]" in text else text + "[training]"
    config = parse_config(parted.replace("[training]", "[training]\naverage_weights_every = 2", 1), "node.toml")
    assert make_core_settings(config, "me").average_rounds == rounds
    assert needs_peer_weights(config) == (rounds > 0)


@pytest.mark.parametrize(
    ("sender", "sends", "drive"), [("wallet", True, "manager"), ("proxy", True, "never"), ("none", False, "never")]
)
def test_only_a_wallet_moves_a_contract_on(sender: str, sends: bool, drive: str) -> None:
    chain = f"""
[chain]
rpc = ["http://127.0.0.1:1"]
chain_id = 1
contract = "0x{"00" * 20}"
drive = "manager"
sender = "{sender}"
[chain.proxy]
org = "me"
"""
    settings = make_core_settings(parse_config(FOLLOWER + chain, "node.toml"), "peer-f").chain
    assert settings is not None and (settings.sends, settings.drive) == (sends, drive)


@pytest.mark.parametrize("text", ["a = " + 2000 * "[" + 2000 * "]", "a = " + 5000 * "1"])
def test_text_that_no_parser_can_bear_is_no_valid_toml(text: str) -> None:
    with pytest.raises(ConfigError, match="not valid TOML"):
        parse_config(text, "config.toml")
