"""Wrong inputs of all kinds: the error names what was given, and what would do."""

from __future__ import annotations

import errno
import gzip
import json
import socket
import tarfile
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from swarmd.cli import run_command
from swarmd.dht.wire.addresses import suggest_address
from swarmd.files import make_write_error
from swarmd.training.models.source import EMBEDDED_DIR

MANIFEST = "swarm.toml"
CONFIG = "node/config.toml"


HEAD = 'role = "coordinator"\n[swarm]\nid = "x"\n'
OWN = 'data = "."\n' + HEAD + 'kind = "file"\n[swarm.options]\ndata = "q.jsonl"\n'
REFUSES_SYSTEM = (
    "{% for m in messages %}{{ raise_exception('no system role') if m.role == 'system' else m.content }}{% endfor %}"
)
FILES = {
    "q.jsonl": '{"prompt": "a", "answer": "1"}\n',
    "note.txt": "hello\n",
    "yaml.toml": "role: coordinator\n",
    "curly.toml": "name = “x”\n",
    "bare.toml": HEAD + "[training]\ndevice = gpu\n",
    "twice.toml": HEAD + "[training]\nsteps = 1\nsteps = 2\n",
    "unit.toml": HEAD + '[round]\ntrain_s = "10 min"\n',
    "place.toml": HEAD + "[training]\ntrain_s = 10\n",
    "rate.toml": HEAD + "[training]\nlearning_rate = 5.0\n",
    "list.toml": HEAD + '[dht]\nlisten = "x"\n',
    "empty.toml": 'role = "coordinator"\n',
    "enum.toml": OWN + 'answer = "last-nubmer"\n',
    "reward.toml": OWN + 'rewards = [{name = "numerc"}]\n',
    "text.toml": OWN.replace("q.jsonl", "note.txt"),
    "page.toml": HEAD + '[web]\nlisten = "0.0.0.0:8800"\n',
    "model.toml": HEAD + '[training]\nmodel = "./models/tinny"\n',
    "card.toml": HEAD + '[training]\ndevice = "xpu"\n',
    "cut.toml": "format = 1\n[swarm",
    "inner.toml": HEAD + "[training.dht]\nlisten = []\n",
    "inner_key.toml": HEAD + 'name = "bob"\n',
    "rows.toml": HEAD + "[[round]]\ntrain_s = 9.0\n",
    "truth.toml": HEAD + "[web]\nenabled = True\n",
    "comma.toml": HEAD + "[training]\nclip_low = 0,2\n",
    "power.toml": HEAD + "[training]\nbeta = 3·10\n",
    "urls.toml": HEAD + '[chain]\nrpc = "http://127.0.0.1:8545"\n',
    "rows.csv": "prompt,answer\n1?,2\n",
    "at.toml": HEAD + '[training]\nmodel = "Qwen/Qwen3-0.6B@main"\n',
    "url.toml": HEAD + '[training]\nmodel = "https://huggingface.co/Qwen/Qwen3-0.6B"\n',
    "hf.toml": HEAD + '[training]\nmodel = "hf:Qwen/Qwen3-0.6B"\n',
    "nameless.toml": HEAD + '[training]\nmodel = ""\n',
    "list.json": '[{"prompt": "1?", "answer": "2"}]',
    "other.jsonl": '{"question": "1?", "answer": "2"}',
    "csv.toml": OWN.replace("q.jsonl", "rows.csv"),
    "json.toml": OWN.replace("q.jsonl", "list.json"),
    "column.toml": OWN.replace("q.jsonl", "other.jsonl"),
    "absent.toml": OWN.replace("q.jsonl", "new.jsonl") + 'dataset = "data/none.csv"\n',
    "web.toml": OWN.replace("q.jsonl", "new.jsonl") + 'dataset = "https://example.org/q.csv"\n',
    "other.toml": '[project]\nname = "x"\n',
    "nothing.toml": "",
    "alien.toml": HEAD + "[training]\nlr = 1e-6\n",
    "vllm.toml": HEAD + '[training.vllm]\nmode = "server"\nurl = "localhost:8000"\n',
    "chainless.toml": HEAD + '[chain]\nrpc = ["https://e.org"]\n',
    "scheme.toml": HEAD + '[chain]\nrpc = ["e.org:1"]\nchain_id = 1\ncontract = "0x' + 40 * "a" + '"\n',
    "contract.toml": HEAD + '[chain]\nrpc = ["https://e.org"]\nchain_id = 1\ncontract = "0xa1"\n',
    "trusted.toml": HEAD + '[training]\nweights_from = ["bob"]\n',
    "task.toml": HEAD + 'tasks = [{name = "digits_sot"}]\n',
    "layer.toml": HEAD + '[training.lora]\nrank = 8\ntargets = ["q_projj"]\n',
    "module.toml": OWN + 'reward_funcs = ["my.py"]\n',
    "weights.toml": OWN + 'reward_funcs = ["my:f"]\nreward_weights = [1.0, 2.0]\n',
    "pattern.toml": OWN + 'rewards = [{name = "regex", pattern = "(["}]\n',
    "latin.toml": OWN.replace("q.jsonl", "latin.jsonl"),
    "notify.toml": HEAD + '[notify]\ncommand = ["false"]\n',
    "untokenized.toml": HEAD + '[training]\nmodel = "./models/untokenized"\n',
    "unknown.toml": HEAD + '[training]\nmodel = "./models/unknown"\n',
    "rpcs.txt": "# none yet\n",
    "package.json": '{"name": "app", "version": "1.0.0"}',
    "packed.zip": "PK\x03\x04\0\0",
    "chain_id.toml": HEAD + '[chain]\nrpc = ["https://e.org"]\nchain_id = "1"\ncontract = "0x' + 40 * "a" + '"\n',
    "words.toml": HEAD + '[notify]\ncommand = "mail me"\n',
    "names.toml": OWN + 'rewards = ["exact"]\n',
    "small.toml": HEAD + "[storage]\nlog_bytes_max = 2\n",
    "loss.toml": HEAD + '[training]\nloss = "dapo"\n',
    "report.toml": HEAD + '[training]\nreport_to = "wandb"\n',
    "trailing.toml": HEAD + "[training]\nsteps = 40,\n",
    "long.toml": HEAD + "[training]\nprompt_tokens = 4096\n",
    "page.toml2": "<!DOCTYPE html><html></html>\n",
    "deep.toml": HEAD + "x = " + "[" * 99 + "]" * 99 + "\n",
    "udp.toml": HEAD + '[dht]\nannounce = ["/dns4/a.example/udp/4001"]\n',
    "unshaped.toml": HEAD + '[training]\nmodel = "./models/unshaped"\n',
    "template.toml": HEAD + '[training]\nmodel = "./models/template"\n',
    "hub.toml": HEAD + '[results.hub]\nrepo = "me/model"\n',
    "mine.py": "def short(completions, **columns):\n    return [1.0]\n\n\nclass Model:\n    pass\n",
    "broken.py": "def short(:\n",
    "system.toml": OWN + "system = 5\n",
    "short.toml": OWN + 'reward_funcs = ["mine:shrot"]\n',
    "class.toml": OWN + 'reward_funcs = ["mine:Model"]\n',
    "syntax.toml": OWN + 'reward_funcs = ["broken:short"]\n',
    "called.py": "def few(completions):\n    return [1.0]\n\n\ndef other(samples, **columns):\n    return [1.0]\n",
    "few.toml": OWN + 'reward_funcs = ["called:few"]\n',
    "lacking.toml": OWN + 'reward_funcs = ["called:other"]\n',
    "file.toml": OWN + 'reward_funcs = ["called.py:other"]\n',
    "quoted.toml": OWN + 'reward_funcs = ["called:other"]\nreward_weights = ["1.0"]\n',
    "dotted.toml": OWN + 'reward_funcs = ["called.other"]\n',
    "split.toml": OWN.replace("q.jsonl", "new.jsonl") + 'dataset = "q.jsonl"\nsplit = "train[:10%"\n',
    "quorum.toml": HEAD + "[coordinator]\nquorum = 80\n",
    "octet.toml": HEAD + '[dht]\nannounce = ["/ip4/10.0.0.300/tcp/1"]\n',
    "chat.jsonl": '{"prompt": [{"role": "user", "content": "1?"}], "answer": "2"}',
    "chat.toml": OWN.replace("q.jsonl", "chat.jsonl"),
    "number.jsonl": '{"prompt": "1?", "answer": 2}',
    "number.toml": OWN.replace("q.jsonl", "number.jsonl"),
    "deeper.toml": HEAD + '[training]\nmodel = "./models/deeper"\n',
    "scored.toml": HEAD + '[training]\nmodel = "./models/scored"\n',
    "systemless.toml": OWN + '[training]\nmodel = "./models/systemless"\n',
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a node in it, and files that are wrong in some way."""
    root = tmp_path_factory.mktemp("made")
    assert run_command(["swarm", "new", "mine", "--dir", str(root / "node")]) == 0
    (root / "node" / MANIFEST).rename(root / MANIFEST)
    manifest = (root / MANIFEST).read_text()
    (root / "altered.toml").write_text(manifest.replace('creator = "12D3KooW', 'creator = "12D3KooX'))
    (root / "utf16.toml").write_text('role = "coordinator"', encoding="utf-16")
    for name, text in FILES.items():
        (root / name).write_text(text)
    (root / "backup.tar.gz").write_bytes(gzip.compress(b"x"))
    (root / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    (root / "0.seg").write_bytes(b"SWRMLOG1\x01\0\x84")
    (root / "models" / "tiny").mkdir(parents=True)
    (root / "models" / "tiny" / "config.json").write_text("{}")
    known = json.loads((EMBEDDED_DIR / "config.json").read_text())
    settings = known | {"model_type": "qwen9"}
    for name in ("untokenized", "unknown"):
        (root / "models" / name).mkdir()
        (root / "models" / name / "config.json").write_text(json.dumps(settings))
        (root / "models" / name / "model.safetensors").symlink_to(EMBEDDED_DIR / "model.safetensors")
    (root / "models" / "unknown" / "tokenizer.json").symlink_to(EMBEDDED_DIR / "tokenizer.json")
    (root / "latin.jsonl").write_text(FILES["q.jsonl"].replace("a", "\xe9", 1), encoding="latin-1")
    with tarfile.open(root / "foreign.tar.gz", "w:gz") as archive:
        archive.add(root / "models")
    for name, file, text in (
        ("unshaped", "config.json", json.dumps(settings | {"model_type": "qwen3", "vocab_size": 300})),
        ("template", "chat_template.jinja", "{% for m in messages %}{{ m.content }"),
        ("deeper", "config.json", json.dumps(known | {"num_hidden_layers": 3, "layer_types": ["full_attention"] * 3})),
        ("scored", "model.safetensors", ""),
        ("systemless", "chat_template.jinja", REFUSES_SYSTEM),
    ):
        (root / "models" / name).mkdir()
        for source in EMBEDDED_DIR.iterdir():
            (root / "models" / name / source.name).symlink_to(source)
        (root / "models" / name / file).unlink(missing_ok=True)
        (root / "models" / name / file).write_text(text)
    weights = load_file(EMBEDDED_DIR / "model.safetensors")
    scored = weights | {"score.weight": weights["model.norm.weight"].clone()}
    save_file(scored, root / "models" / "scored" / "model.safetensors", {"format": "pt"})
    for name in ("logless", "newer"):
        (root / "nodes" / name / "checkpoints").mkdir(parents=True)
        (root / "nodes" / name / "config.toml").write_text('data = "."\n' + HEAD)
    (root / "nodes" / "newer" / "layout.json").write_text('{"layout": 99}')
    (root / "empty.tar").write_bytes(bytes(10240))
    (root / "models" / "listed").mkdir()
    (root / "models" / "listed" / "config.json").write_text("[1]")
    (root / "torn.toml").write_text('role = "coordinator"\n[swarm\nid = "x"\n')
    return root


@pytest.mark.parametrize(
    ("command", "told", "fix"),
    [
        (["config", "check", "loss.toml"], "unknown key 'training.loss'", "The loss is always GRPO's"),
        (["config", "check", "report.toml"], "unknown key 'training.report_to'", "trackers = [...] below [results]"),
        (["config", "check", "trailing.toml"], "at line 5", "a line has no comma at its end"),
        (["config", "check", "long.toml"], "embedded reads 1024 tokens", "Lower one of the two"),
        (["config", "check", "page.toml2"], "is not valid TOML", "This is a web page"),
        (["join", "page.toml2", "--dir", "new"], "is not valid TOML", "This is a web page"),
        (["config", "check", "deep.toml"], "nested more than 64 deep", "is it the right one?"),
        (["config", "check", "udp.toml"], "is UDP without QUIC", "/udp/PORT/quic-v1"),
        (["config", "check", "unshaped.toml"], "1 has another shape (model.embed_tokens.weight", "Its config.json is"),
        (["config", "check", "template.toml"], "chat template of ./models/template is not valid Jinja", "Mend or copy"),
        (["bundle", "node", "b.zip"], "unexpected extra argument", "--to"),
        (["explain", "node", "-1"], "takes no number below 0, as -1 is", "Write it as `swarmd explain"),
        (["replay", "node", "--state", "--step"], "exclude each other: give one", "says what goes together"),
        (["swarm", "new", "x", "--kind", "digits"], "has no option --kind", "It is swarm.kind in a configuration"),
        (["swarm", "remove-bootnode", MANIFEST, "bob"], "'bob' is not the address of a node", "Write for example /ip4"),
        (["config", "check", "hub.toml"], "results.hub.token is missing", "Name a file, mode 0600"),
        (["config", "check", "system.toml"], "swarm.options.system: Expected `str", 'in quotes: system = "..."'),
        (["config", "check", "short.toml"], "mine.py has no function 'shrot'", "Did you mean mine:short?"),
        (["config", "check", "class.toml"], "'mine:Model' is not a function", "Name a function"),
        (["config", "check", "syntax.toml"], "broken.py cannot be read as Python", "Correct broken.py"),
        (
            ["config", "check", "few.toml"],
            "(called.py, line 1) does not take answer, completion_ids, log_extra, ",
            "**kwargs",
        ),
        (["config", "check", "lacking.toml"], "(called.py, line 5) asks for samples, and is given", "**kwargs"),
        (["config", "check", "file.toml"], "is not an import path", 'Write it as "called:other"'),
        (["config", "check", "quorum.toml"], "coordinator.quorum", "as a share, 0.8 for 80 %"),
        (["config", "check", "octet.toml"], "'/ip4/10.0.0.300/tcp/1' is not an address", "/ip4/192.0.2.1/tcp/38331"),
        (["config", "check", "quoted.toml"], "reward_weights[0]: Expected `float`", "Write it without quotes, as 1.0"),
        (["config", "check", "dotted.toml"], "is not an import path", 'Write it as "called:other"'),
        (["config", "check", "split.toml"], "Unrecognized instruction format", 'as "train", "train[:1000]"'),
        (["join", "altered.toml", "--dir", "new"], "is not a peer id", "Get the file again"),
        (["config", "check", "chat.toml"], "line 1: 'prompt' is not a text: [", "Write the user's message alone"),
        (["config", "check", "number.toml"], "line 1: 'answer' is not a text: 2", '{"answer": "2"}'),
        (["config", "check", "deeper.toml"], "are missing (model.layers.", "put the config.json that belongs"),
        (["swarm", "new", "x", "--dir", "new", "--config", "deeper.toml"], "are missing (model.layers.", "config.json"),
        (["config", "check", "scored.toml"], "1 is not the model's (score.weight)", "saved as a classifier or reward"),
        (["config", "check", "systemless.toml"], "refuses a chat of system, user", "mend its chat_template.jinja"),
        (["explain", "nodes/logless"], "the log of the node in nodes/logless is gone", "Put them back from a copy"),
        (["status", "nodes/newer"], "nodes/newer has layout 99", "Use the newer swarmd"),
        (["model", "check", "models/listed"], "config.json holds a list in JSON", "Copy or download it again"),
        (["model", "build", "--out", "note.txt/new"], "note.txt/new: Not a directory", "Move away what is at"),
        (["model", "build", "--out", "/proc/new"], "/proc/new: No such file", "Name another place"),
        (["restore", "empty.tar", "new"], "has no backup.json", "or name the file that `swarmd backup make"),
        (["restore", "packed.zip", "new"], "is a zip archive, not a backup", "`swarmd backup make DIR FILE` wrote"),
        (
            ["log", "cat", "node", "--format", "csv"],
            "no option --format",
            "Did you mean --from? Write it as `swarmd log",
        ),
        (["join", MANIFEST, "--dir", "/proc/new"], "the directory /proc/new cannot be made", "Name another one with"),
        (["run", "--config", MANIFEST], "is the manifest of a swarm", "`swarmd join swarm.toml --dir DIR` makes"),
        (["config", "check", MANIFEST], "is the manifest of a swarm", "`swarmd join swarm.toml --dir DIR` makes"),
        (["join", CONFIG, "--dir", "new"], "is a node's configuration, not a manifest", "Name the swarm.toml"),
        (
            ["join", "https://e.org/swarm.toml", "--dir", "new"],
            "https://e.org/swarm.toml is a URL",
            "curl -O https://e.org/s",
        ),
        (["status", "."], "there is no node in .", "Did you mean node?"),
        (["replay"], "there is no node here", "Did you mean node?"),
        (["config", "check", "torn.toml"], "torn.toml is not valid TOML", "Mend that line: [swarm"),
        (["config", "check", "utf16.toml"], "cannot be read: 'utf-8' codec", "Name a text file in UTF-8"),
        (["run", "--config", "."], "is a directory", "config.toml"),
        (["backup", "make", "nowhere", "x.tar"], "no node in nowhere", "swarmd init"),
        (["restore", "nowhere", "new"], "no backup of a node nowhere", "backup make"),
        (["service", "install", "--config", "no.toml"], "no configuration file no.toml", "init"),
        (["identity", "show", "nowhere"], "no identity nowhere", "identity new"),
        (["run", "--config", "none.toml"], "there is no configuration file none.toml", "`swarmd init` makes a node"),
        (["swarm", "new", "\udcdcn", "--dir", "new"], "has characters that cannot be shown", "in UTF-8"),
        (["swarm", "new"], "Missing argument 'name'", "Write it as `swarmd swarm new NAME --dir DIRECTORY`"),
        (
            ["swarm", "new", "x", "--dir", "new", "--announce", "a.example:4001"],
            "is not an address",
            "/dns4/a.example/tcp",
        ),
        (
            ["swarm", "new", "x", "--dir", "new", "--listen", "4001"],
            "'4001' is not an address",
            "/ip4/0.0.0.0/tcp/4001",
        ),
        (["status", "nodde"], "it does not exist", "Did you mean node?"),
        (["status", MANIFEST], "is the manifest of a swarm, not a node's directory", "`swarmd join swarm.toml"),
        (["run", CONFIG], "is a node's configuration, not a node's directory", "--config node/config.toml"),
        (["replay", "backup.tar.gz"], "is an archive, not a node's directory", "`swarmd restore backup.tar.gz DIR`"),
        (["restore", MANIFEST, "new"], "is the manifest of a swarm, not a backup", "`swarmd join swarm.toml"),
        (["restore", "node", "backup.tar.gz"], "node is a directory, not a backup", "before the directory"),
        (["bundle", "node", "--out", "gone/b.tar.gz"], "there is no directory", "Make it first"),
        (["identity", "restore", "backup.tar.gz", "new"], "is not a backup that swarmd sealed", "`swarmd restore`"),
        (["join", "node", "--dir", "new"], "node is a directory, not a manifest", "Name the swarm.toml"),
        (["join", "cut.toml", "--dir", "new"], "is not valid TOML", "ends too early"),
        (["config", "check", "q.jsonl"], "is not valid TOML", "This is JSON"),
        (["config", "check", "yaml.toml"], "is not valid TOML", "= where YAML has a colon"),
        (["config", "check", "curly.toml"], "is not valid TOML", "quotes are straight"),
        (["config", "check", "bare.toml"], "is not valid TOML", "device = gpu (texts need quotes)"),
        (["config", "check", "twice.toml"], "is not valid TOML", "it stands there twice"),
        (["config", "check", "unit.toml"], "round.train_s: Expected `float`", "in seconds: train_s = 600.0"),
        (["config", "check", "place.toml"], "unknown key 'training.train_s'", "It belongs elsewhere: round.train_s"),
        (["config", "check", "rate.toml"], "training.learning_rate: Expected `float` <= 1.0", "learning_rate = 0.0003"),
        (["config", "check", "list.toml"], "dht.listen: Expected `array`", 'listen = ["/ip4/0.0.0.0/tcp/38331"]'),
        (["config", "check", "empty.toml"], "empty.toml: swarm is missing", 'id = "my-swarm"'),
        (
            ["config", "check", "enum.toml"],
            "swarm.options.answer: Invalid enum value",
            "Choose one of tags, last-number",
        ),
        (["config", "check", "reward.toml"], "swarm.options.rewards[0].name", "Choose one of exact, numeric"),
        (["config", "check", "text.toml"], "note.txt", "one JSON object a line"),
        (["config", "check", "page.toml"], "asks for no token", "web.token"),
        (["config", "check", "model.toml"], "there is no model directory models/tinny", "Did you mean ./models/tiny?"),
        (["config", "check", "card.toml"], "training.device is 'xpu', but torch finds none", 'device = "auto"'),
        (["local", "--set", "steps=3"], "--set: unknown key 'steps'", "It belongs elsewhere: training.steps"),
        (["local", "--dir", "note.txt"], "note.txt is a file, not a directory", "--dir"),
        (["local", "--nodes", "0"], "--nodes takes 1 or more, not '0'", "--nodes: Nodes"),
        (["model", "fit", "--memory", "24GB"], "--memory takes a number, without a unit, not '24GB'", "--memory: "),
        (["dashboard", "--port", "8800"], "swarmd dashboard has no option --port", "--listen HOST:PORT"),
        (["status", "--wach"], "swarmd status has no option --wach", "Did you mean --watch?"),
        (["explain", "node", "-5"], "takes no number below 0, as -5 is", "swarmd explain [DIR] [ROUND]"),
        (
            ["join", "backup.tar.gz", "--dir", "new"],
            "is an archive, not a manifest",
            "`swarmd restore backup.tar.gz DIR`",
        ),
        (["local", "--kind", "q.jsonl"], "q.jsonl is neither a kind nor a configuration", "ends in .toml"),
        (["identity", "show", "node"], "node is not a regular file", "Name the file in that directory"),
        (["join", "swarm.tml", "--dir", "new"], "there is no manifest swarm.tml", "Did you mean swarm.toml?"),
        (["local", "--set", "training=5"], "training: Expected `object`", "training is a table"),
        (["log", "node"], "No such command 'node'", "comes one of cat, tail"),
        (["config", "check", "picture.png"], "is a picture, not a node's configuration", "Name a node's config.toml"),
        (["config", "check", "0.seg"], "is a segment of an event log", "Name the node's directory"),
        (["swarm", "check", "rows.csv"], "is not valid TOML", "is it the right file?"),
        (["config", "check", "inner.toml"], "unknown key 'training.dht'", "write [dht]"),
        (["config", "check", "inner_key.toml"], "unknown key 'swarm.name'", "write it above the first table"),
        (["config", "check", "rows.toml"], "round: Expected `object`, got `array`", "write [round], with single"),
        (["config", "check", "truth.toml"], "is not valid TOML", "true or false, in small letters"),
        (["config", "check", "comma.toml"], "is not valid TOML", "decimals follow a point"),
        (["config", "check", "power.toml"], "is not valid TOML", "as 0.0003 or 3e-4"),
        (["config", "check", "urls.toml"], "chain.rpc: Expected `array`", 'rpc = ["..."]'),
        (["identity", "show", CONFIG], "is not an identity", "Name a node's identity.key"),
        (["account", "show", "node/identity.key"], "is not a keystore", "Name a node's account.json"),
        (
            ["model", "check", "models/tiny"],
            "models/tiny does not hold one of swarmd's embedded models",
            "`swarmd model build` wrote",
        ),
        (["status", "https://e.org/node"], "is a URL, and a node is a directory", "of this machine"),
        (["log", "cat", "models/tiny"], "there is no node in models/tiny", "Name the directory of a node"),
        (["sim", "--churn", "nan"], "--churn takes a number, not 'nan'", "--churn: Share"),
        (["sim", "--nodes", "1000000000"], "--nodes takes 10000 or less", "--nodes: Nodes"),
        (["model", "fit", "--memory", "inf"], "--memory takes 100000 or less, not 'inf'", "--memory: GiB"),
        (["reference-server", "--listen", "localhost:88000"], "ports end at 65535", "like this: localhost:59807"),
        (
            ["swarm", "new", "x", "--dir", "new", "--listen", "/ip4/300.0.2.1/tcp/1"],
            "is not an address",
            "not a valid ip4 address",
        ),
        (["swarm", "status", MANIFEST, "--rpc", "http://127.0.0.1:1"], "has no chain", "Leave out --rpc"),
        (["join", MANIFEST, "--dir", "new", "--creator", "bob"], "'bob' is not a peer id", "12D3Koo"),
        (["join", MANIFEST, "--dir", "new", "--signer", "http://e.org"], "has no chain", "Leave them out"),
        (["leaderboard", "node", "--contract", "0x12"], "needs --rpc", "Give --rpc URL"),
        (["swarm", "invite", "Bob", "--dir", "node"], "nobody needs an invitation", "`swarmd swarm new --invited`"),
        (["join", MANIFEST, "--dir", "new", "--invitation", "x"], "asks for no invitation", "Name the manifest of the"),
        (["log", "export", "node", "--jsonl", "q.jsonl"], "q.jsonl exists already", "never overwritten"),
        (["chat", "models/tiny", "--ask", " "], "--ask is blank", "in quotes"),
        (["notify", "node"], "names no way to notify anybody", "below [notify]"),
        (["status", "node", "more"], "unexpected extra argument(s) (more)", "`swarmd status [DIR]`"),
        (["join", MANIFEST, "--dir", "new", "--name", "x" * 65], "--name: the name has 65 characters", "a shorter one"),
        (["local", "--set", "training.learning_rate=nan"], "error: --set: training.learning_rate", "= 0.0003"),
        (["identity", "show", "note.txt"], "note.txt is not an identity", "Name a node's identity.key"),
        (["config", "check", "at.toml"], "Qwen3-0.6B@main", '"Qwen/Qwen3-0.6B" and training.revision = "main"'),
        (["config", "check", "url.toml"], "https://hugging", 'training.model = "Qwen/Qwen3-0.6B"'),
        (["config", "check", "hf.toml"], "hf:Qwen", 'training.model = "Qwen/Qwen3-0.6B"'),
        (["config", "check", "nameless.toml"], "", 'an id is "user/model"'),
        (["config", "check", "csv.toml"], "line 1: not JSON in UTF-8", "swarm.options.dataset"),
        (["config", "check", "json.toml"], "line 1: list, not an object", "swarm.options.dataset"),
        (["config", "check", "column.toml"], "'prompt' is missing; it has: 'question'", "Every row"),
        (["config", "check", "absent.toml"], "there is no ", "docs/swarms/file.md"),
        (["config", "check", "web.toml"], "there is no ", "docs/swarms/file.md"),
        (["config", "check", "other.toml"], "not a node's configuration: it has project", "Name a node's config.toml"),
        (["swarm", "check", "other.toml"], "it is not a manifest: it has project", "Name the swarm.toml"),
        (["swarm", "check", "nothing.toml"], "it is not a manifest: it is empty", "Name the swarm.toml"),
        (["config", "check", "alien.toml"], "unknown key 'training.lr'", "Did you mean training.learning_rate?"),
        (["config", "check", "vllm.toml"], "training.vllm.url: 'localhost:8000'", 'url = "http://localhost:8000"'),
        (
            ["config", "check", "chainless.toml"],
            "chain.chain_id is missing",
            "`swarmd join MANIFEST` writes this table",
        ),
        (["config", "check", "scheme.toml"], "chain.rpc: entry 1 is not the URL", "Write it as https://host/path"),
        (["config", "check", "contract.toml"], "chain.contract: it is not of the right form", "0x and 40 hex digits"),
        (["config", "check", "trusted.toml"], "training.weights_from[0]", 'Write it as "coordinator", "credited" or'),
        (["config", "check", "task.toml"], "the task 'digits_sot' is not one of", "kind"),
        (["config", "check", "layer.toml"], "the model has no linear layer q_projj", "Its linear layers are down_proj"),
        (
            ["config", "check", "module.toml"],
            "'my.py' is not an import path of a function",
            'Write it as "my:function"',
        ),
        (["config", "check", "weights.toml"], "has 2 values for 1 of `reward_funcs`", "Give one for each, or none"),
        (["config", "check", "pattern.toml"], "'([' is not a regular expression", "before a bracket"),
        (["config", "check", "latin.toml"], "line 1: not JSON in UTF-8", "Save the file as UTF-8"),
        (["config", "check", "untokenized.toml"], "has no tokenizer", "Copy the tokenizer's files"),
        (["config", "check", "unknown.toml"], "model type `qwen9`", "or a newer transformers"),
        (["notify", "--config", "notify.toml"], "ended with status 1", "Correct what is named above"),
        (
            ["model", "check", "models/unknown"],
            "does not hold one of swarmd's embedded models",
            "`swarmd model build` wrote",
        ),
        (
            ["swarm", "new", "x", "--dir", "new", "--announce", "/ip4/0.0.0.0/tcp/1"],
            "is an address to listen on",
            "others reach",
        ),
        (["account", "show", "package.json"], "package.json is not a keystore", "Name a node's account.json"),
        (
            ["swarm", "new", "x", "--dir", "new", "--rpc", "file:rpcs.txt"],
            "0 endpoints in file:rpcs.txt",
            "one on each line",
        ),
        (["identity", "import", "node/identity.key", "new"], "is not RL Swarm's", "`swarmd identity restore`"),
        (["start"], "No such command 'start'", "Did you mean `swarmd run`?"),
        (["sim", "--set", "hour=2"], "has no 'hour'", "Did you mean hours?"),
        (["service", "uninstall", "--instance", "none"], "is not installed", "`systemctl list-unit-files 'swarmd*'`"),
        (
            ["restore", "foreign.tar.gz", "new"],
            "is an archive, but not a backup",
            "`swarmd backup make DIR FILE` wrote",
        ),
        (["config", "check", "packed.zip"], "is not valid TOML", "This is not text"),
        (["config", "check", "chain_id.toml"], "chain.chain_id: Expected `int`", "without quotes: chain_id = 1"),
        (["config", "check", "words.toml"], "notify.command: Expected `array`", 'as a list: command = ["..."]'),
        (["config", "check", "names.toml"], "swarm.options.rewards[0]", "write {KEY = VALUE}"),
        (["sim", "--set", "nodes=many"], "the simulated swarm's nodes: Expected `int`", "Write it as nodes="),
        (
            ["config", "check", "small.toml"],
            "storage.log_bytes_max: Expected `int` >= 10",
            "log_bytes_max = 2147483648",
        ),
    ],
)
def test_what_was_given_and_what_would_do_are_named(
    made: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    command: list[str],
    told: str,
    fix: str,
) -> None:
    monkeypatch.chdir(made)
    assert run_command(command) != 0
    said = capsys.readouterr().err
    error, _, remedy = said.partition("\nfix: ")
    assert told in error and fix in remedy
    assert not (made / "new").exists()


def test_a_port_that_is_taken_is_said_before_a_model_is_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        for command in (["model", "serve", "none"], ["reference-server", "--model", "./none"]):
            assert run_command([*command, "--listen", listen]) == 78
            assert "Choose another --listen" in capsys.readouterr().err


def test_a_wrong_variable_is_named_as_it_was_given(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SWARMD_INIT_PROCESSES", "two")
    assert run_command(["init", "--yes", "--dir", "new"]) == 64
    assert "SWARMD_INIT_PROCESSES takes a whole number, not 'two'" in capsys.readouterr().err


def test_a_file_that_cannot_be_written_where_it_was_asked_for(tmp_path: Path) -> None:
    missing = FileNotFoundError(errno.ENOENT, "No such file or directory")
    assert "make the directory" in make_write_error(missing, tmp_path / "gone" / "x.jsonl", "export").fix


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ("example.org:4001", "/dns4/example.org/tcp/4001"),
        ("https://example.org/", "/dns4/example.org/tcp/38331"),
        ("192.0.2.7", "/ip4/192.0.2.7/tcp/38331"),
        ("/ip4/nonsense", "/ip4/192.0.2.1/tcp/38331"),
    ],
)
def test_a_host_is_written_as_an_address(given: str, written: str) -> None:
    assert suggest_address(given).endswith(written)
