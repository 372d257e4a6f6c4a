"""Wheels for a machine with a GPU: those that it lacks."""

from tests.packaging.conftest import script


def test_what_the_other_machine_has_is_not_carried() -> None:
    gpu = script("gpu")
    everything = {gpu.normal(line.partition("==")[0]) for line in gpu.wanted(set())}
    needed = {gpu.normal(line.partition("==")[0]) for line in gpu.wanted({"torch", "grpcio-tools"})}
    assert everything - needed == {"torch", "grpcio-tools"}
    assert {"trl", "hivemind", "web3", "gguf", "bitsandbytes"} <= needed
    assert not {"pytest", "mypy"} & everything
