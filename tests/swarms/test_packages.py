"""Python that a manifest names: who lacks it is told how to install it, and nobody installs it unasked."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from swarmd.config import SwarmConfig, TrainingConfig
from swarmd.errors import EnvironmentMissing, SwarmError
from swarmd.swarms import packages
from swarmd.swarms.file import FilePlan
from swarmd.swarms.packages import Package, check_packages, describe_packages
from tests.swarms.making import write_rows

FILE = "my_rewards:f"
PACKAGED = "my_env.inner:f"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "my_rewards.py").write_text("def f(completions, **kwargs):\n    return [1.0] * len(completions)\n")
    return tmp_path


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A distribution, as an installer leaves it."""
    site = tmp_path / "site"
    (site / "my_env").mkdir(parents=True)
    (site / "my_env" / "__init__.py").write_text("")
    (site / "my_env" / "inner.py").write_text("def f(): ...\n")
    (site / "my_env-1.2.dist-info").mkdir()
    (site / "my_env-1.2.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: my-env\nVersion: 1.2\n")
    (site / "my_env-1.2.dist-info" / "top_level.txt").write_text("my_env\n")
    monkeypatch.syspath_prepend(site)
    return site


def test_a_file_has_the_digest_that_sha256sum_prints(home: Path) -> None:
    (found,) = describe_packages([FILE, "my_rewards:g"], home)
    assert found == Package("my_rewards", hashlib.sha256((home / "my_rewards.py").read_bytes()).hexdigest())
    check_packages([found], [FILE], home)


def test_a_distribution_has_name_version_and_the_digest_of_its_files(home: Path, site: Path) -> None:
    (found,) = describe_packages([PACKAGED], home)
    assert (found.module, found.name, found.version) == ("my_env", "my-env", "1.2")
    check_packages([found], [PACKAGED], home)
    (site / "my_env" / "inner.pyc").write_bytes(b"differs between machines")
    check_packages([found], [PACKAGED], home)
    (site / "my_env" / "inner.py").write_text("def f(): return 1\n")
    with pytest.raises(EnvironmentMissing, match=r"my-env 1\.2 .* this node has my-env 1\.2 with other content"):
        check_packages([found], [PACKAGED], home)


def test_who_lacks_a_distribution_or_has_another_version_is_given_the_command(home: Path, site: Path) -> None:
    wanted = Package("my_env", "0" * 64, "my-env", "1.3")
    with pytest.raises(EnvironmentMissing, match=r"my-env 1\.3 .* this node has my-env 1\.2\. ") as caught:
        check_packages([wanted], [PACKAGED], home)
    assert caught.value.fix.endswith("-m pip install 'my-env==1.3'")
    with pytest.raises(EnvironmentMissing, match=r"other 2 .* it is not installed here"):
        check_packages([Package("other", "0" * 64, "other", "2")], ["other:f"], home)


def test_who_lacks_a_file_is_given_the_command_and_gets_no_copy(home: Path, tmp_path: Path) -> None:
    found = describe_packages([FILE], home)
    mine = tmp_path / "my node"
    with pytest.raises(EnvironmentMissing, match="it is not installed here") as caught:
        check_packages(found, [FILE], mine, home)
    assert caught.value.fix.endswith(f"mkdir -p '{mine}' && cp {home}/my_rewards.py '{mine}'/")
    assert "look at it first" in caught.value.fix and not mine.exists()
    with pytest.raises(EnvironmentMissing) as caught:
        check_packages(found, [FILE], mine)
    assert caught.value.fix.startswith("Get my_rewards.py from whoever gave you the manifest")


def test_a_function_of_a_package_that_is_not_named_is_refused(home: Path) -> None:
    with pytest.raises(SwarmError, match="does not name my_rewards"):
        check_packages([], [FILE], home)


@pytest.mark.parametrize(
    ("path", "package"),
    [
        ("os:system", Package("os", "0" * 64)),
        ("transformers:pipeline", Package("transformers", "0" * 64, "transformers", "5")),
        ("numpy:load", Package("numpy", "0" * 64, "NumPy", "2")),
        ("swarmd.files:write_durably", Package("swarmd", "0" * 64, "swarmd", "1")),
        ("trl.scripts:main", Package("trl", "0" * 64, "trl", "1")),
    ],
)
def test_no_manifest_names_what_every_node_has(home: Path, path: str, package: Package) -> None:
    with pytest.raises(SwarmError, match="no manifest names functions of"):
        check_packages([package], [path], home)
    with pytest.raises(SwarmError, match=r"no manifest names functions of|where a manifest cannot name it"):
        describe_packages([path], home)


def test_rewards_of_trl_may_be_named(home: Path) -> None:
    paths = ["trl.rewards:think_format_reward"]
    (found,) = describe_packages(paths, home)
    assert found.name == "trl"
    check_packages([found], paths, home)


def test_a_module_elsewhere_on_the_path_is_not_taken_for_the_file(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = describe_packages([FILE], home)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "my_rewards.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path / "elsewhere")
    with pytest.raises(SwarmError, match=r"is found at .*elsewhere/my_rewards\.py, where a manifest cannot name it"):
        check_packages(found, [FILE], home)


def test_a_package_too_large_for_a_manifest_is_told(home: Path, site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "BYTES_MAX", 3)
    with pytest.raises(SwarmError, match="too large for a manifest"):
        describe_packages([PACKAGED], home)


def test_a_plan_is_not_made_without_them_and_imports_nothing(home: Path) -> None:
    write_rows(home / "q.jsonl", [{"prompt": f"{n}?"} for n in range(20)])
    options = {"data": "q.jsonl", "reward_funcs": [FILE], "packages": [{"module": "my_rewards", "digest": "0" * 64}]}
    (home / "my_rewards.py").write_text(f"open({str(home / 'ran')!r}, 'w')\ndef f(): ...\n")
    with pytest.raises(EnvironmentMissing, match="with other content"):
        FilePlan(SwarmConfig("s", kind="file", options=options), TrainingConfig(), home)
    assert not (home / "ran").exists()
