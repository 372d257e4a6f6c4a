"""The manifest: what is written is read again, and nothing in it can be changed unnoticed."""

import os
import tomllib
from contextlib import suppress
from pathlib import Path
from typing import Any, get_type_hints

import msgpack
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarmd.config import Config, LoraConfig, SwarmConfig, TaskConfig, TrainingConfig
from swarmd.dht.identity.identity import Identity, generate_identity
from swarmd.errors import ExitCode, ManifestError, NotFoundError
from swarmd.manifest import (
    MANIFEST_BYTES_MAX,
    Manifest,
    ManifestChain,
    ManifestRecipe,
    ManifestRounds,
    NodeChoice,
    Signature,
    check_form,
    make_node_config,
    parse_manifest,
    read_manifest,
    recipe_digest,
    recipe_of,
    render_manifest,
    sign_manifest,
    signed_message,
    verify,
    write_manifest,
)
from tests.dht.making import RSA

CREATOR = generate_identity()
OTHER = generate_identity()
BOOTNODE = f"/ip4/192.0.2.1/tcp/38331/p2p/{CREATOR.peer_id}"
CONTRACT = "0x" + "aB" * 20
NODE_LOCAL = {
    *("device", "dtype", "attention", "quantization", "vllm", "reference", "memory_bytes_max", "pool"),
    *("processes", "accelerate", "threads", "overlap", "micro_questions", "gradient_checkpointing"),
    *("schedule", "warmup_steps", "schedule_steps", "optimizer", "seed"),
    *("peer_loss", "peer_floor", "replay_questions", "warm_up"),
    *("own_questions", "own_questions_max"),
    *("held_out_questions", "held_out_every"),
    *("offer_weights_every", "catch_up", "weights_from"),
    "average_weights_every",
}

plain = st.recursive(
    st.booleans() | st.integers(-(2**62), 2**62) | st.floats(allow_nan=False, allow_infinity=False) | st.just("text"),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=4,
)
titles = st.text(st.characters(categories=("L", "N", "P", "S")), min_size=1, max_size=20)
tasks = st.builds(
    TaskConfig,
    name=titles,
    weight=st.floats(0.1, 100),
    config=st.dictionaries(titles, plain, max_size=3),
    curriculum=st.booleans(),
)
options = st.dictionaries(
    titles, plain | st.just("two\nlines") | st.dictionaries(titles, plain | st.just({}), max_size=2), max_size=3
)
training = st.builds(
    TrainingConfig,
    model=st.sampled_from(["embedded", "smollm2", "Qwen/Qwen3-0.6B"]),
    steps=st.integers(1, 10_000),
    generations=st.integers(2, 64),
    temperature=st.floats(0.1, 2),
    beta=st.floats(0, 1),
)
rounds = st.builds(
    ManifestRounds,
    coordinator=st.just(CREATOR.peer_id),
    min_peers=st.integers(1, 100),
    start_s=st.floats(0.1, 1e6),
    stage_s=st.floats(0.1, 1e6),
    quorum=st.floats(0.01, 1),
    rounds_max=st.integers(0, 1000),
)


def a_chain(**changes: Any) -> ManifestChain:
    return msgspec.structs.replace(
        ManifestChain(31337, CONTRACT, 5, ("http://127.0.0.1:8545",), 2, 0, 300, 1000, 1), **changes
    )


chains = st.builds(a_chain, chain_id=st.integers(1, 2**40), depth=st.integers(0, 100), winners=st.integers(0, 100))


def unsigned(**changes: Any) -> Manifest:
    """A manifest of CREATOR without a chain."""
    values: dict[str, Any] = {
        "format": 1,
        "id": "digits-1",
        "name": "Digits",
        "created_at": 1_700_000_000,
        "creator": CREATOR.peer_id,
        "membership": "open",
        "members": (),
        "bootnodes": (BOOTNODE,),
        "recipe": recipe_of(Config(SwarmConfig("digits", tasks=(TaskConfig("chain_sum", 2.0, {"min_terms": 2}),)))),
        "signature": Signature(CREATOR.peer_id, "0" * 128),
        "rounds": ManifestRounds(CREATOR.peer_id, 1, 60.0, 300.0, 1.0, 0),
    }
    return Manifest(**values | changes)


def signed(identity: Identity = CREATOR, **changes: Any) -> Manifest:
    return sign_manifest(unsigned(**changes), identity)


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    recipe = recipe_of(
        Config(
            SwarmConfig("s", tasks=tuple(draw(st.lists(tasks, max_size=3))), options=draw(options)),
            training=draw(training),
        )
    )
    mode = draw(st.one_of(rounds.map(lambda r: {"rounds": r}), chains.map(lambda c: {"rounds": None, "chain": c})))
    closed = mode.get("chain") is None and draw(st.booleans())
    members = {"membership": "allow-list", "members": (OTHER.peer_id,)} if closed else {}
    return signed(name=draw(titles), created_at=draw(st.integers(0, 2**33)), recipe=recipe, **mode, **members)


@given(manifests())
@settings(max_examples=60, deadline=None)
def test_what_is_written_is_read_again_and_proved(manifest: Manifest) -> None:
    again = parse_manifest(render_manifest(manifest))
    assert again == manifest
    verify(again)


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of all values in tables and lists that hold no other."""
    if isinstance(value, dict):
        return [leaf for key, inner in value.items() for leaf in leaves(inner, (*path, key))]
    if isinstance(value, list | tuple):
        return [leaf for index, inner in enumerate(value) for leaf in leaves(inner, (*path, index))]
    return [path]


def altered(value: Any) -> Any:
    """Another value of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return value * 0.5 + 0.123456
    return value[:-1] + ("b" if value[-1] != "b" else "c")


@given(manifests(), st.data())
@settings(max_examples=150, deadline=None)
def test_a_change_of_any_value_is_noticed(manifest: Manifest, data: st.DataObject) -> None:
    content = msgspec.to_builtins(manifest, builtin_types=())
    content = msgspec.json.decode(msgspec.json.encode(content))
    path = data.draw(st.sampled_from(leaves(content)))
    place = content
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = altered(place[path[-1]])
    with pytest.raises((ManifestError, msgspec.ValidationError)):
        verify(msgspec.convert(content, Manifest))


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_a_damaged_file_is_refused_or_says_the_same(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    manifest = signed()
    raw = bytearray(render_manifest(manifest).encode())
    raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    file = tmp_path_factory.mktemp("damaged") / "swarm.toml"
    file.write_bytes(raw)
    with suppress(ManifestError):
        assert read_manifest(file) == manifest  # a comment or a space


def refusal(manifest: Manifest) -> str:
    with pytest.raises(ManifestError) as caught:
        verify(manifest)
    assert caught.value.exit_code == ExitCode.BAD_DATA
    return caught.value.message


def test_an_rsa_identity_can_create_a_swarm() -> None:
    manifest = signed(RSA, creator=RSA.peer_id, rounds=ManifestRounds(RSA.peer_id, 1, 60.0, 300.0, 1.0, 0))
    verify(parse_manifest(render_manifest(manifest)))
    assert refusal(msgspec.structs.replace(manifest, name="Digit")).startswith("the signature is not the creator's")


RECIPE = signed().recipe
LONGER = msgspec.structs.replace(RECIPE, steps=41)
UNDIGESTED, UNSIGNED = "the recipe does not have its digest", "the signature is not the creator's"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"recipe": LONGER}, UNDIGESTED),
        ({"recipe": msgspec.structs.replace(RECIPE, digest="f" * 64)}, UNDIGESTED),
        ({"recipe": msgspec.structs.replace(LONGER, digest=recipe_digest(LONGER))}, UNSIGNED),
        ({"name": "Digit"}, UNSIGNED),
        (
            {"signature": Signature(OTHER.peer_id, "0" * 128)},
            f"the creator is {CREATOR.peer_id}, but '{OTHER.peer_id}'",
        ),
        (
            {
                "creator": OTHER.peer_id,
                "rounds": ManifestRounds(OTHER.peer_id, 1, 60.0, 300.0, 1.0, 0),
                "signature": Signature(OTHER.peer_id, signed().signature.value),
            },
            UNSIGNED,
        ),
    ],
)
def test_each_fraud_has_its_own_words(changes: dict[str, Any], told: str) -> None:
    assert refusal(msgspec.structs.replace(signed(), **changes)).startswith(told)


def test_nobody_else_can_sign() -> None:
    with pytest.raises(ManifestError, match="it cannot sign"):
        signed(OTHER)


AUTOMATIC = recipe_of(Config(SwarmConfig("s"), training=TrainingConfig(model="auto")))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"rounds": None}, "either [rounds]"),
        ({"chain": a_chain()}, "either [rounds]"),
        ({"bootnodes": ("/ip4/192.0.2.1/tcp/1",)}, "bootnodes: '/ip4/192.0.2.1/tcp/1' is not the address of a node"),
        ({"bootnodes": (f"/ip4/x/tcp/1/p2p/{CREATOR.peer_id}",)}, "bootnodes: "),
        ({"bootnodes": (f"/dns4/a\x1b[2J/tcp/1/p2p/{CREATOR.peer_id}",)}, "characters that cannot be printed"),
        ({"members": ("Qm",), "membership": "allow-list"}, "members: 'Qm' is not a peer id"),
        ({"members": (OTHER.peer_id,)}, 'members does not go with membership = "open"'),
        ({"membership": "allow-list"}, 'members does not go with membership = "allow-list"'),
        ({"members": (OTHER.peer_id,), "rounds": None, "chain": a_chain()}, "the contract keeps the allow-list"),
        ({"rounds": ManifestRounds(OTHER.peer_id, 1, 1.0, 1.0, 1.0, 0)}, "rounds.coordinator is not the creator"),
        ({"rounds": None, "chain": a_chain(rpc=("ftp://x",))}, "chain.rpc: 'ftp' is not a scheme"),
        ({"name": "a\nb"}, "name: 'a\\nb' has characters"),
        ({"average_weights_every": 2}, 'average_weights_every does not go with membership = "open"'),
        ({"average_weights_every": 2, "membership": "work", "work_bits": 20}, 'with membership = "work"'),
        ({"average_weights_every": 2, "rounds": None, "chain": a_chain()}, "average_weights_every: on a chain"),
        (
            {"average_weights_every": 2, "membership": "invitation", "recipe": AUTOMATIC},
            'average_weights_every: with recipe.model = "auto" each node chooses its own model',
        ),
    ],
)
def test_values_that_do_not_go_together(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(ManifestError) as caught:
        signed(**changes)
    assert told in caught.value.message


def deep(levels: int) -> Any:
    return 1 if levels == 0 else [deep(levels - 1)]


@pytest.mark.parametrize("value", [deep(9), float("nan"), float("inf"), 2**64, "a\x00b", "a\x1b[2J", None, b"raw"])
def test_settings_of_a_task_and_options_of_a_kind_are_plain(value: Any) -> None:
    with pytest.raises(ManifestError, match="chain_sum"):
        recipe_of(Config(SwarmConfig("s", tasks=(TaskConfig("chain_sum", 1.0, {"a": value}),))))
    with pytest.raises(ManifestError, match=r"recipe\.options"):
        recipe_of(Config(SwarmConfig("s", options={"a": {"b": value}})))


def test_what_keeps_programs_in_is_no_manifests_to_say() -> None:
    """Else the maker of a manifest could have peers' programs run on every machine that joins, without a sandbox."""
    options = {"sandbox": "none-i-accept-the-risk", "judge": "http://192.0.2.1/v1", "judge_model": "m", "level": 3}
    options["own_limits"] = {"memory_bytes": 2**40}
    recipe = recipe_of(Config(SwarmConfig("s", kind="proposer-solver", stages=2, options=options)))
    assert recipe.options == {"level": 3}
    for name in ("sandbox", "own_limits", "judge", "judge_model"):
        bad = msgspec.structs.replace(recipe, options={name: options[name]})
        with pytest.raises(ManifestError, match=rf"recipe\.options: {name}"):
            check_form(unsigned(recipe=bad))


def test_a_revision_is_part_of_the_recipe_and_none_changes_no_digest() -> None:
    recipe = recipe_of(Config(SwarmConfig("s"), training=TrainingConfig(model="org/name", revision="v1")))
    manifest = signed(recipe=recipe)
    assert make_node_config(manifest, NodeChoice(OTHER.peer_id)).training.revision == "v1"
    plain = msgspec.structs.replace(recipe, revision="")
    assert "revision" not in msgspec.to_builtins(plain)
    assert recipe_digest(plain) != recipe_digest(recipe)


@pytest.mark.parametrize("model", ["/srv/model", "../x", "~/model", "a/b/c", "x.gguf", "a/x.GGUF", ""])
def test_a_model_that_is_not_on_this_machine_is_not_named_by_a_path(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ManifestError, match="no manifest can name the model") as caught:
        recipe_of(Config(SwarmConfig("s"), training=TrainingConfig(model=model)))
    assert "Hugging Face" in caught.value.fix


TEXT = render_manifest(signed())


@pytest.mark.parametrize(
    ("old", "new", "told", "fix"),
    [
        ("name =", "nam =", "unknown key 'nam'", "Did you mean name?"),
        ("steps =", "stepz =", "unknown key 'recipe.stepz'", "Did you mean recipe.steps?"),
        ("weight =", "wait =", "unknown key 'recipe.tasks[0].wait'", "Did you mean recipe.tasks[0].weight?"),
        ("quorum = 1.0", "", "rounds.quorum is missing", ""),
        ("quorum = 1.0", "quorum = 1.5", "<= 1.0", ""),
        ("format = 1", "format = 2", "format is 2, this version of swarmd reads 1", "newer swarmd"),
        ("format = 1", "", "it is not a manifest", "swarm.toml"),
        ("format = 1", "format = ", "not valid TOML", ""),
        ("steps = 40", "steps = " + "4" * 5000, "not valid TOML", ""),
        ("steps = 40", "steps = " + "4" * 30, "recipe.steps", ""),
        ("steps = 40", "steps = " + "[" * 5000, "not valid TOML", ""),
        ('membership = "open"', 'membership = "closed"', "membership", ""),
        ("members = []", 'members = ["a"' + ', "a"' * 600 + "]", "members", ""),
        ('value = "', 'value = "zz', "signature.value", ""),
        ('model = "embedded"', 'model = "embedded\\n"', "recipe.model", ""),
        ("created_at = ", "created_at = 999", "created_at", ""),
    ],
)
def test_malformed_files_name_the_key(tmp_path: Path, old: str, new: str, told: str, fix: str) -> None:
    assert TEXT.count(old) >= 1
    file = tmp_path / "swarm.toml"
    file.write_text(TEXT.replace(old, new, 1))
    with pytest.raises(ManifestError) as caught:
        read_manifest(file)
    assert caught.value.message.startswith(str(file))
    assert told in caught.value.message
    assert fix in caught.value.fix


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        read_manifest(tmp_path / "none.toml")
    os.mkfifo(tmp_path / "pipe")  # nobody writes to it
    (tmp_path / "large.toml").write_text("#" * (MANIFEST_BYTES_MAX + 1))
    for name, told in (("", "is a directory"), ("pipe", "not a regular file"), ("large.toml", "larger than")):
        with pytest.raises(ManifestError, match=told):
            read_manifest(tmp_path / name)


def test_a_manifest_that_would_be_too_large_is_not_written(tmp_path: Path) -> None:
    texts = {f"k{n}": "x" * 200 for n in range(400)}
    recipe = recipe_of(Config(SwarmConfig("s", tasks=(TaskConfig("chain_sum", 1.0, texts),))))
    with pytest.raises(ManifestError, match="larger than"):
        write_manifest(tmp_path / "swarm.toml", signed(recipe=recipe))
    assert list(tmp_path.iterdir()) == []


def test_the_canonical_form_is_what_any_msgpack_writes() -> None:
    """What docs/PROTOCOL.md tells another implementation."""
    manifest = signed()

    def ordered(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: ordered(value[key]) for key in sorted(value)}
        return [ordered(item) for item in value] if isinstance(value, list) else value

    content = tomllib.loads(render_manifest(manifest))
    content.pop("signature")
    assert signed_message(manifest) == b"swarmd-manifest-v1\x00" + msgpack.packb(ordered(content))


def test_the_recipe_is_all_of_training_that_is_not_a_nodes_own() -> None:
    """A new key of [training] must be put on one side or the other."""
    own = {"kind", "stages", "tasks", "options", "digest"}
    assert set(TrainingConfig.__struct_fields__) - NODE_LOCAL == set(ManifestRecipe.__struct_fields__) - own
    ours, theirs = (get_type_hints(kind, include_extras=True) for kind in (ManifestRecipe, TrainingConfig))
    alike = (ours.keys() & theirs.keys()) - {"model", "lora", "peer_questions"}
    assert {k: ours[k] for k in alike} == {k: theirs[k] for k in alike}


def test_adapters_are_part_of_the_recipe_and_none_change_no_digest() -> None:
    """What nodes share of a model then fits whoever joins, and so does the learning rate."""
    lora = LoraConfig(rank=8, targets=("q_proj",))
    recipe = recipe_of(Config(SwarmConfig("s"), training=TrainingConfig(lora=lora)))
    manifest = signed(recipe=recipe)
    assert parse_manifest(render_manifest(manifest)) == manifest
    assert make_node_config(manifest, NodeChoice(OTHER.peer_id)).training.lora == lora
    plain = recipe_of(Config(SwarmConfig("s"), training=TrainingConfig(lora=LoraConfig(alpha=32))))
    assert plain.lora is None and recipe_digest(plain) == recipe_digest(recipe_of(Config(SwarmConfig("s"))))


def nodes_of(manifest: Manifest) -> tuple[Config, Config]:
    """The configurations of a follower and of the coordinator."""
    rpc = ("http://127.0.0.1:1",)
    leader = NodeChoice(CREATOR.peer_id, role="coordinator", rpc=rpc)
    return make_node_config(manifest, NodeChoice(OTHER.peer_id, "bob", rpc=rpc)), make_node_config(manifest, leader)


@given(manifests())
@settings(max_examples=30, deadline=None)
def test_a_configuration_made_of_a_manifest_has_its_recipe(manifest: Manifest) -> None:
    follower, leader = nodes_of(manifest)
    for config in (follower, leader):
        assert recipe_digest(recipe_of(config)) == manifest.recipe.digest
        assert config.swarm.id == manifest.id
        assert (config.chain is None) == (manifest.chain is None)
    assert follower.swarm.coordinator == manifest.creator == leader.dht.peer
    assert follower.dht.bootstrap == manifest.bootnodes
    assert leader.dht.bootstrap == ()
    assert follower.dht.members == manifest.members
    if manifest.rounds is not None:
        assert leader.coordinator.stage_s == manifest.rounds.stage_s


@pytest.mark.parametrize("chain", [False, True])
def test_all_nodes_train_one_model_so_who_comes_late_takes_the_coordinators_weights(chain: bool) -> None:
    manifest = signed(rounds=None, chain=a_chain()) if chain else signed()
    follower, leader = (config.training for config in nodes_of(manifest))
    assert (follower.catch_up, follower.weights_from) == ("none" if chain else "weights", ("coordinator",))
    assert (leader.catch_up, leader.offer_weights_every) == ("none", 0 if chain else 1)
    own = make_node_config(
        manifest, NodeChoice(OTHER.peer_id, rpc=("http://127.0.0.1:1",), training={"catch_up": "none"})
    )
    assert own.training.catch_up == "none", "it is the node's own choice"


def test_all_nodes_of_a_swarm_that_averages_offer_their_weights_and_trust_members_with_credit() -> None:
    nodes = nodes_of(signed(membership="invitation", average_weights_every=2))
    for config, catch_up in zip(nodes, ("weights", "none"), strict=True):
        training = config.training
        assert (training.average_weights_every, training.offer_weights_every) == (2, 1)
        assert (training.weights_from, training.catch_up) == (("coordinator", "credited"), catch_up)
