"""The shipped alert rules: sound, explained, silent about a node that is well; each fires at its own trouble only."""

from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from tests.monitoring.tools import MONITORING, RULES, alerts, names_in, promtool, series_names

NODE = 'job="swarmd",instance="alpha:8800"'
HOUR = 120  # samples, one every 30 s
LONG = 3 * HOUR
Changes = dict[str, str | None]  # series -> samples in promtool's notation, None for none
REFUSED = "swarmd_submissions_refused_total"

# A follower on a chain that is well, for three hours, with a stage every half minute.
HEALTHY: dict[str, str] = {
    "up{}": f"1x{LONG}",
    "swarmd_daemon_up{}": f"1x{LONG}",
    "swarmd_start_time_seconds{}": f"1x{LONG}",
    'swarmd_node_info{role="follower",swarm="s",version="1"}': f"1x{LONG}",
    'swarmd_health{depth="live"}': f"1x{LONG}",
    'swarmd_health{depth="ready"}': f"1x{LONG}",
    'swarmd_layer_healthy{layer="chain"}': f"1x{LONG}",
    "swarmd_stage_trained_timestamp_seconds{}": f"0+30x{LONG}",
    "swarmd_stage_limit_seconds{}": f"60x{LONG}",
    "swarmd_swarm_finished{}": f"0x{LONG}",
    "swarmd_deadline_overdue_seconds{}": f"0x{LONG}",
    "swarmd_rounds_joined_total{}": f"0+1x{LONG}",
    'swarmd_rounds_skipped_total{cause="slow"}': f"0x{LONG}",
    'swarmd_rounds_skipped_total{cause="late"}': f"0+1x{LONG}",
    'swarmd_worker_exits_total{worker="trainer",cause="crash"}': f"0x{LONG}",
    'swarmd_worker_exits_total{worker="trainer",cause="planned"}': f"0+1x{LONG}",
    'swarmd_worker_memory_bytes{worker="trainer"}': f"100x{LONG}",
    'swarmd_worker_memory_bytes{worker="network"}': f"199x{LONG}",
    "swarmd_trainer_memory_limit_bytes{}": f"200x{LONG}",
    "swarmd_peers{}": f"3x{LONG}",
    "swarmd_isolated{}": f"0x{LONG}",
    'swarmd_records_rejected_total{reason="stale"}': f"0+1x{LONG}",
    'swarmd_equivocations_total{kind="clock"}': f"0x{LONG}",
    'swarmd_equivocations_total{kind="report"}': f"0x{LONG}",
    'swarmd_submissions_total{kind="reward",state="intended"}': f"0+1x{LONG}",
    'swarmd_submissions_total{kind="reward",state="confirmed"}': f"0+1x{LONG}",
    'swarmd_submissions_refused_total{kind="reward",code="PeerNotAllowed"}': f"0x{LONG}",
    'swarmd_submissions_refused_total{kind="reward",code="below-mark"}': f"0x{LONG}",
    'swarmd_submissions_refused_total{kind="advance",code="AdvanceNotAllowed"}': f"0+1x{LONG}",
    'swarmd_submission_failures_total{cause="funds"}': f"0x{LONG}",
    'swarmd_submission_failures_total{cause="fees"}': f"0x{LONG}",
    'swarmd_submission_failures_total{cause="budget"}': f"0x{LONG}",
    "swarmd_chain_rounds_paid{}": f"9000-1x{LONG}",
    "swarmd_chain_day_spent_coins{}": f"0.3x{LONG}",
    "swarmd_chain_day_budget_coins{}": f"0.5x{LONG}",
    "swarmd_disk_free_bytes{}": f"50000000000x{LONG}",
    "swarmd_disk_free_limit_bytes{}": f"33554432x{LONG}",
    "swarmd_log_bytes{}": f"1048576+1000x{LONG}",
    "swarmd_log_limit_bytes{}": f"2147483648x{LONG}",
    'swarmd_notifications_total{sender="url",outcome="failed"}': f"0x{LONG}",
    'swarmd_notifications_total{sender="url",outcome="done"}': f"0+1x{LONG}",
}


class Case(NamedTuple):
    """Something that goes wrong after an hour, and the alerts that fire then, exactly these, `within` minutes."""

    name: str
    changes: dict[str, str | None]
    fires: set[str]
    within: int
    before: int = 0  # minutes after it went wrong in which nothing fires yet


def after(well: str, ill: str) -> str:
    """Well for an hour (121 samples), then ill."""
    return f"{well}x{HOUR} {ill}x{LONG - HOUR}"


CASES = [
    Case("the server is gone", {"up{}": after("1", "0")}, {"SwarmdNodeDown"}, 3, 1),
    Case("the daemon is gone", {"swarmd_daemon_up{}": after("1", "0")}, {"SwarmdNodeDown"}, 3, 1),
    Case("a crash loop of the daemon", {"swarmd_start_time_seconds{}": f"1x{HOUR} 3600+60x{LONG - HOUR}"},
         {"SwarmdNodeRestarting"}, 5, 0),
    Case("not ready", {'swarmd_health{depth="ready"}': after("1", "0")}, {"SwarmdNotReady"}, 12, 8),
    Case("not ready, and down",
         {'swarmd_health{depth="ready"}': after("1", "0"), "swarmd_daemon_up{}": after("1", "0")},
         {"SwarmdNodeDown"}, 20),
    Case("a silent stall", {"swarmd_stage_trained_timestamp_seconds{}": f"0+30x{HOUR} 3600x{LONG - HOUR}"},
         {"SwarmdSilentStall"}, 8, 5),
    Case("nothing trained since the start", {"swarmd_stage_trained_timestamp_seconds{}": None},
         {"SwarmdSilentStall"}, 0),
    Case("no round for an hour", {"swarmd_stage_trained_timestamp_seconds{}": None,
         "swarmd_stage_limit_seconds{}": None, "swarmd_swarm_finished{}": None}, {"SwarmdSilentStall"}, 5),
    Case("the swarm has run its rounds", {
        "swarmd_stage_trained_timestamp_seconds{}": f"0+30x{HOUR} 3600x{LONG - HOUR}",
        "swarmd_swarm_finished{}": after("0", "1")}, set(), 60),
    Case("the coordinator is silent", {"swarmd_deadline_overdue_seconds{}": f"0x{HOUR} 0+30x{LONG - HOUR}"},
         {"SwarmdRoundOverdue"}, 6, 3),
    Case("rounds are missed", {'swarmd_rounds_skipped_total{cause="slow"}': f"0x{HOUR} 0+1x{LONG - HOUR}"},
         {"SwarmdSkippingRounds"}, 30, 4),
    Case("few rounds are missed", {'swarmd_rounds_skipped_total{cause="slow"}': f"0x{HOUR} 5x{LONG - HOUR}"},
         set(), 60),
    Case("the trainer crashes again and again",
         {'swarmd_worker_exits_total{worker="trainer",cause="crash"}': f"0x{HOUR} 1+1x{LONG - HOUR}"},
         {"SwarmdWorkerRestarting"}, 4),
    Case("the trainer crashed once",
         {'swarmd_worker_exits_total{worker="trainer",cause="crash"}': f"0x{HOUR} 1x{LONG - HOUR}"}, set(), 5),
    Case("memory near the budget", {'swarmd_worker_memory_bytes{worker="trainer"}': after("100", "190")},
         {"SwarmdMemoryNearBudget"}, 12, 8),
    Case("no peers", {"swarmd_peers{}": after("3", "0")}, {"SwarmdNoPeers"}, 7, 4),
    Case("no peers on a coordinator", {"swarmd_peers{}": after("3", "0"),
         'swarmd_node_info{role="follower",swarm="s",version="1"}': None,
         'swarmd_node_info{role="coordinator",swarm="s",version="1"}': f"1x{LONG}"}, set(), 60),
    Case("it is cut off", {"swarmd_isolated{}": after("0", "1")}, {"SwarmdIsolated"}, 2),
    Case("two clocks", {'swarmd_equivocations_total{kind="clock"}': f"0x{HOUR} 1x{LONG - HOUR}"},
         {"SwarmdEquivocation"}, 2),
    Case("a peer's two reports", {'swarmd_equivocations_total{kind="report"}': f"0x{HOUR} 1x{LONG - HOUR}"},
         {"SwarmdMemberEquivocation"}, 2),
    Case("a burst of bad records", {'swarmd_records_rejected_total{reason="stale"}': f"0x{HOUR} 0+50x{LONG - HOUR}"},
         {"SwarmdRecordsRejected"}, 8),
    Case("a payload", {"swarmd_payload_marks_total{}": f"0x{HOUR} 0+1x{LONG - HOUR}"}, {"SwarmdPayload"}, 4),
    Case("a peer's habit, once", {"swarmd_payload_marks_total{}": f"0x{HOUR} 1x{LONG - HOUR}"}, set(), 60),
    Case("the chain is away", {'swarmd_layer_healthy{layer="chain"}': after("1", "0")}, {"SwarmdChainUnwell"}, 12, 8),
    Case("a submission waits", {"swarmd_submission_oldest_seconds{}": f"_x{HOUR} 0+30x{LONG - HOUR}"},
         {"SwarmdSubmissionsUnconfirmed"}, 25, 15),
    Case("nothing is confirmed",
         {'swarmd_submissions_total{kind="reward",state="confirmed"}': f"0+1x{HOUR} {HOUR}x{LONG - HOUR}"},
         {"SwarmdSubmissionsUnconfirmed"}, 75, 50),
    Case("a refusal", {REFUSED + '{kind="reward",code="PeerNotAllowed"}': f"0x{HOUR} 1x{LONG - HOUR}"},
         {"SwarmdSubmissionsRefused"}, 2),
    Case("a refusal after a restore", {REFUSED + '{kind="reward",code="below-mark"}': f"0x{HOUR} 1x{LONG - HOUR}"},
         set(), 2),
    Case("no coins", {'swarmd_submission_failures_total{cause="funds"}': f"0x{HOUR} 1+1x{LONG - HOUR}"},
         {"SwarmdFundsLow"}, 2),
    Case("few coins", {"swarmd_rounds_joined_total{}": f"0x{LONG}", "swarmd_chain_rounds_paid{}": after("10", "9")},
         {"SwarmdFundsRunningOut"}, 18, 12),
    Case("coins for less than a day", {"swarmd_chain_rounds_paid{}": after("4000", "2800")},
         {"SwarmdFundsRunningOut"}, 18, 12),
    Case("coins for little more than a day", {"swarmd_chain_rounds_paid{}": after("4000", "2950")}, set(), 60),
    Case("few coins for a short while", {"swarmd_chain_rounds_paid{}": f"4000x{HOUR} 2x20 4000x{LONG - HOUR - 20}"},
         set(), 20),
    Case("few coins when all rounds are over",
         {"swarmd_chain_rounds_paid{}": after("4000", "2"), "swarmd_swarm_finished{}": after("0", "1")}, set(), 60),
    Case("coins that nobody knows", {"swarmd_chain_rounds_paid{}": None}, set(), 60),
    Case("the day's budget is nearly spent", {"swarmd_chain_day_spent_coins{}": after("0.3", "0.41")},
         {"SwarmdGasBudgetNearlySpent"}, 4),
    Case("most of the day's budget is left", {"swarmd_chain_day_spent_coins{}": after("0.3", "0.39")}, set(), 60),
    Case("much is signed for without a budget", {"swarmd_chain_day_spent_coins{}": after("0.3", "9"),
         "swarmd_chain_day_budget_coins{}": None}, set(), 60),
    Case("the day's budget is spent",
         {'swarmd_submission_failures_total{cause="budget"}': f"0x{HOUR} 1+1x{LONG - HOUR}"},
         {"SwarmdGasBudgetSpent"}, 2),
    Case("dear gas", {'swarmd_submission_failures_total{cause="fees"}': f"0x{HOUR} 1+1x{LONG - HOUR}"},
         {"SwarmdGasTooDear"}, 18, 10),
    Case("little room", {"swarmd_disk_free_bytes{}": after("50000000000", "1000000000")}, {"SwarmdDiskLow"}, 7, 4),
    Case("the log fills up", {"swarmd_log_bytes{}": f"1048576x{HOUR} 1048576+1000000x{LONG - HOUR}"},
         {"SwarmdLogGrowing"}, 80, 20),
    Case("the log is beyond its bound", {"swarmd_log_bytes{}": f"2900000000x{LONG}"}, {"SwarmdLogGrowing"}, 0),
    Case("messages do not get out",
         {'swarmd_notifications_total{sender="url",outcome="failed"}': f"0x{HOUR} 1x{LONG - HOUR}"},
         {"SwarmdNotificationsFailing"}, 2),
]  # fmt: skip


def labelled(series: str) -> str:
    """The series with the node's labels."""
    return series.replace("{", "{" + NODE + ("," if not series.endswith("{}") else ""))


def scenario(changes: Changes, checks: list[tuple[int, set[str]]]) -> dict[str, Any]:
    """A test for promtool: at these minutes these alerts fire and no others."""
    series = {name: values for name, values in (HEALTHY | changes).items() if values is not None}
    return {
        "interval": "30s",
        "input_series": [{"series": labelled(name), "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {
                "expr": 'max by (alertname) (ALERTS{alertstate="firing"})',
                "eval_time": f"{minute}m",
                "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in sorted(names)],
            }
            for minute, names in checks
        ],
    }


def run(tests: list[dict[str, Any]], tmp_path: Path) -> str:
    file = {"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests}
    path = tmp_path / "rules.test.yml"
    path.write_text(yaml.safe_dump(file))
    return promtool("test", "rules", path)


def test_prometheus_takes_the_shipped_files() -> None:
    assert "SUCCESS" in promtool("check", "config", MONITORING / "prometheus.yml")
    assert f"{len(alerts())} rules found" in promtool("check", "rules", RULES)


def test_a_node_that_is_well_raises_no_alert(tmp_path: Path) -> None:
    checks: list[tuple[int, set[str]]] = [(minute, set()) for minute in range(0, 181, 10)]
    assert "SUCCESS" in run([scenario({}, checks)], tmp_path)


def test_each_trouble_raises_its_own_alert_and_no_other(tmp_path: Path) -> None:
    assert "SUCCESS" in run([scenario(case.changes, checks_of(case)) for case in CASES], tmp_path)


def checks_of(case: Case) -> list[tuple[int, set[str]]]:
    before = [(61 + case.before, set[str]())] if case.before else []
    return [*before, (61 + case.within, case.fires)]


def test_every_alert_is_seen_to_fire() -> None:
    assert {rule["alert"] for rule in alerts()} == set().union(*(case.fires for case in CASES))


@pytest.mark.parametrize("rule", alerts(), ids=lambda rule: rule["alert"])
def test_an_alert_says_what_it_means_and_what_to_do(rule: dict[str, Any]) -> None:
    annotations = rule["annotations"]
    assert rule["labels"] == {"severity": rule["labels"]["severity"]}
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert "$labels.instance" in annotations["summary"]
    assert annotations["description"].endswith(".") and annotations["action"].endswith((".", "?"))
    assert set(names_in(rule["expr"])) <= series_names()
