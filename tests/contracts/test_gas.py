"""The documented cost of calls is the measured one."""

from tests.contracts.gas import documented, table


def test_the_documented_gas_is_what_a_run_measures() -> None:
    """After a change that is meant: make contracts-gas."""
    assert documented() == table()
