"""How files are dealt out: the longest first, those of whole nodes in two units; and what all may take together."""

from tests import schedule

BUDGET_S = 1800  # of all files one after another, each with a core of its own
SLOWEST = 20


def is_there(file: str) -> bool:
    return (schedule.RECORDED.parents[1] / file).exists()


def test_all_files_together_keep_to_the_budget() -> None:
    slowest = sorted(filter(is_there, schedule.recorded()), key=schedule.wall_s, reverse=True)
    whole_s = sum(map(schedule.wall_s, slowest))
    listed = "\n".join(f"{schedule.wall_s(file):8.1f} s  {file}" for file in slowest[:SLOWEST])
    assert whole_s <= BUDGET_S, (
        f"by tests/durations.json, tests take {whole_s:.0f} s, {whole_s - BUDGET_S:.0f} s more than they may; make the "
        f"slowest faster, and record the times with `make durations` on a machine with nothing else to do:\n{listed}"
    )
