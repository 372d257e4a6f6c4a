"""Mistakes in what surrounds a node: web, sandbox, backups, units, the doctor, manifests, verbs, rewards."""

from __future__ import annotations

from tests.mutation.planting import Mutant

WEB = (
    Mutant(
        "any name of the server is answered",
        "swarmd/web/http/guard.py",
        "if not self._knows_host(headers, scope):",
        "if False:",
        ("tests/web/http/test_guard.py::test_only_names_of_this_server_are_answered",),
    ),
    Mutant(
        "a page of another site may ask",
        "swarmd/web/http/guard.py",
        "if is_foreign(headers) or (",
        "if (",
        ("tests/web/http/test_guard.py::test_what_a_page_of_another_origin_sends_is_refused",),
    ),
    Mutant(
        "figures are told without the token",
        "swarmd/web/http/guard.py",
        'path in ("/metrics", "/api", *PROBES)',
        'path in ("/api", *PROBES)',
        ("tests/web/http/test_guard.py::test_without_the_token_nothing_of_the_node_is_told",),
    ),
    Mutant(
        "tokens may be guessed without end",
        "swarmd/web/http/guard.py",
        "        if self._fails_often(asker.get(), time.monotonic()):",
        "        if False:",
        ("tests/web/http/test_guard.py::test_wrong_tokens_are_counted_and_the_right_one_comes_in_all_the_same",),
    ),
    Mutant(
        "what is too much to work on waits without end",
        "swarmd/web/http/endpoints.py",
        "if self._bounded and (",
        "if False and (",
        ("tests/web/http/test_endpoints.py::test_one_address_may_ask_for_so_much_and_all_together_for_more",),
    ),
    Mutant(
        "half requests keep their places",
        "swarmd/uvicorn_server.py",
        "        if waiting:",
        "        if False:",
        ("tests/web/test_limits.py::test_half_requests_shut_nobody_out",),
    ),
    Mutant(
        "the form leads to another server",
        "swarmd/web/http/guard.py",
        'not text.startswith(("//", "/\\\\"))',
        'not text.startswith("//")',
        ("tests/web/http/test_guard.py::test_after_the_form_one_stays_on_this_server",),
    ),
    Mutant(
        "an address that strangers reach needs no token",
        "swarmd/http_server.py",
        "if not is_loopback(address.host) and not token:",
        "if False:",
        ("tests/test_http.py",),
    ),
    Mutant(
        "a token may be short",
        "swarmd/http_server.py",
        "if len(token) < TOKEN_CHARS_MIN or not re.fullmatch",
        "if not re.fullmatch",
        ("tests/cli/test_signer.py",),
    ),
    Mutant(
        "any number of clients listen",
        "swarmd/web/http/stream.py",
        "        return len(self._origins) < CLIENTS_MAX or self._who_gives_way(origin) is not None\n",
        "        return True\n",
        ("tests/web/http/test_stream.py::test_clients_have_a_bound_and_leaving_frees_a_place",),
    ),
    Mutant(
        "one address holds all places of the stream",
        "swarmd/web/http/stream.py",
        "        if most < held[origin] + 2:\n",
        "        if True:\n",
        ("tests/web/http/test_stream.py::test_one_address_keeps_nobody_else_out",),
    ),
    Mutant(
        "two processes tell of one node",
        "swarmd/web/notifications.py",
        "                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)\n",
        "                pass\n",
        ("tests/web/test_notifications.py",),
    ),
    Mutant(
        "a layer that flaps is told of each time",
        "swarmd/web/notifications.py",
        "patience_s = quiet_s if self.relapses else after_s",
        "patience_s = after_s",
        ("tests/web/test_notifications.py",),
    ),
    Mutant(
        "a failed message is logged with its address",
        "swarmd/web/notifications.py",
        '            reason = reason.replace(secret, "[redacted]")\n',
        "            pass\n",
        ("tests/web/test_notifications.py::test_a_failure_is_told_without_its_secrets",),
    ),
    Mutant(
        "what the library logs of an address gets out",
        "swarmd/config.py",
        "    log.propagate = False\n",
        "",
        ("tests/web/test_notifications.py::test_no_record_of_the_library_gets_out",),
    ),
    Mutant(
        "a program that is told gets all of the environment",
        "swarmd/web/notifications.py",
        "environment = {name: os.environ[name] for name in PASSED_ON if name in os.environ}",
        "environment = dict(os.environ)",
        ("tests/web/test_notifications.py::test_a_program_gets_the_message_on_its_stdin_and_no_secret_of_ours",),
    ),
)

SECRETS = (
    Mutant(
        "what a field's name calls secret is logged",
        "swarmd/observe/redaction.py",
        "if depth > DEPTH_MAX or _SECRET_NAME.search(name):",
        "if depth > DEPTH_MAX:",
        ("tests/observe/test_redaction.py",),
    ),
    Mutant(
        "an address is logged with its password",
        "swarmd/observe/redaction.py",
        "shown = scheme + (REDACTED + at if user else at) + host",
        "shown = scheme + user + at + host",
        ("tests/observe/test_redaction.py",),
    ),
    Mutant(
        "a secret is written over what is there",
        "swarmd/secret_files.py",
        "os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW",
        "os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW",
        ("tests/dht/identity/test_identity.py",),
    ),
    Mutant(
        "a bundle leaves with secrets in it",
        "swarmd/backup/bundle.py",
        "        refuse_secrets(root, secrets)\n",
        "",
        ("tests/backup/test_bundle.py::test_a_secret_anywhere_stops_it",),
    ),
    Mutant(
        "the doctor prints secrets",
        "swarmd/doctor/examination.py",
        "[cover(finding, secrets) for finding in (*findings, *unread)]",
        "[*findings, *unread]",
        ("tests/doctor/test_examination.py",),
    ),
    Mutant(
        "a manifest counts without its creator's signature",
        "swarmd/manifest.py",
        "if not verify_signature(manifest.creator, value, signed_message(manifest)):",
        "if not value:",
        ("tests/test_manifest.py",),
    ),
    Mutant(
        "a recipe counts without its digest",
        "swarmd/manifest.py",
        "if recipe_digest(manifest.recipe) != manifest.recipe.digest:",
        "if False:",
        ("tests/test_manifest.py",),
    ),
)

SANDBOX = (
    Mutant(
        "a program raises its limits again",
        "swarmd/sandbox/inside.py",
        "(hard, hard + extra))",
        "(hard, -1))",
        ("tests/sandbox/test_escapes.py::test_limits_cannot_be_raised_again",),
    ),
    Mutant(
        "a program asks the kernel for whatever it likes",
        "swarmd/sandbox/launcher.py",
        '    filter_calls(order["filter"])\n',
        "",
        (
            "tests/sandbox/test_escapes.py::test_no_namespace_mount_or_privilege_can_be_had",
            "tests/sandbox/test_escapes.py::test_a_socket_cannot_be_opened",
        ),
    ),
    Mutant(
        "a program prints one byte less than allowed",
        "swarmd/sandbox/sandbox.py",
        "max(len(self.stdout), len(self.stderr)) > self._output_bytes",
        "max(len(self.stdout), len(self.stderr)) >= self._output_bytes",
        ("tests/sandbox/test_escapes.py::test_a_byte_too_many_is_too_much_however_fast_the_program_ends",),
    ),
)

CARE = (
    Mutant(
        "two swarms are mixed in one log",
        "swarmd/daemon/service.py",
        "        compare(data, swarm_of_state(state), swarm_of_config(config))\n",
        "",
        ("tests/daemon/test_directory.py::test_a_node_does_not_start_on_another_swarms_log",),
    ),
    Mutant(
        "a local swarm is laid out over another",
        "swarmd/cli/local_swarm.py",
        "        refuse_other_swarm(place, asked, fix)\n",
        "        continue\n",
        ("tests/cli/test_one_swarm.py::test_local_does_not_mix_two_kinds",),
    ),
    Mutant(
        "a member of a backup leads out of the directory",
        "swarmd/backup/archive.py",
        'return cls.NAMES.fullmatch(name) is not None and not {".", ".."} & set(name.split("/"))',
        "return cls.NAMES.fullmatch(name) is not None",
        ("tests/backup/test_archive.py::test_a_name_that_leads_elsewhere_is_not_a_member",),
    ),
    Mutant(
        "the key in a backup may be another node's",
        "swarmd/backup/backup.py",
        'parse_identity(files[IDENTITY], "the backup\'s key").peer_id != manifest.peer:',
        'not parse_identity(files[IDENTITY], "the backup\'s key").peer_id:',
        ("tests/backup/test_create.py::test_what_is_sealed_is_the_nodes_own_key_and_plain_names",),
    ),
    Mutant(
        "an old archive of a move is taken for the node as it is",
        "swarmd/backup/backup.py",
        "if time.time() - manifest.made_at > MOVED_S_MAX:",
        "if False:",
        ("tests/backup/test_create.py::test_only_a_fresh_backup_of_a_move_goes_on_where_it_was",),
    ),
    Mutant(
        "a restore writes over what is there",
        "swarmd/backup/archive.py",
        "if all(path == making or path.name == _FOREIGN for path in root.iterdir()):",
        "if True:",
        ("tests/backup/test_create.py::test_nothing_is_overwritten",),
    ),
    Mutant(
        "a process that got a leftover's number is killed",
        "swarmd/daemon/process.py",
        'if not _carries(Path("/proc", str(pid)), tag):',
        "if False:",
        ("tests/daemon/test_parts.py::test_a_process_that_got_the_number_of_a_leftover_is_spared",),
    ),
    Mutant(
        "a moved node is open in both places for a moment",
        "swarmd/units.py",
        "                source.moved.unlink()\n                raise",
        "                raise",
        ("tests/units/test_units.py::test_what_comes_meanwhile_is_not_overwritten_and_nothing_is_closed",),
    ),
    Mutant(
        "a configuration that somebody changed is lost",
        "swarmd/units.py",
        "            os.link(path, kept)\n",
        "",
        ("tests/units/test_units.py::test_what_is_replaced_is_kept",),
    ),
    Mutant(
        "a user's service asks for what only root's can do",
        "swarmd/units.py",
        'text = ROOT_ONLY.sub("", text)',
        "pass",
        ("tests/units/test_units.py::test_systemd_takes_a_users_units_without_a_word",),
    ),
)

LOOKING = (
    Mutant(
        "an old answer of the daemon counts as one of now",
        "swarmd/observe/status.py",
        "    if age_s > STALE_S:\n",
        "    if False:\n",
        ("tests/observe/test_status.py",),
    ),
    Mutant(
        "a daemon that is down is shown as up",
        "swarmd/observe/metrics.py",
        'yield "daemon_up", (), 0.0',
        'yield "daemon_up", (), 1.0',
        ("tests/observe/test_metrics.py",),
    ),
    Mutant(
        "a peer's wrong clock is measured by ours",
        "swarmd/doctor/machine.py",
        "if abs(skew_s - middle) > SKEW_MAX_S",
        "if abs(skew_s) > SKEW_MAX_S",
        ("tests/doctor/test_network.py",),
    ),
    Mutant(
        "what the node has on disk counts twice against the room",
        "swarmd/doctor/machine.py",
        "+ checkpoints - _used(data)",
        "+ checkpoints",
        ("tests/doctor/test_findings.py",),
    ),
    Mutant(
        "a warning of the doctor ends with 0",
        "swarmd/doctor/examination.py",
        '{"warning": ExitCode.FAILURE, "error": ExitCode.UNFIT}',
        '{"error": ExitCode.UNFIT}',
        (
            "tests/doctor/test_examination.py",
            "tests/cli/test_doctor.py",
        ),
    ),
    Mutant(
        "every deliberate error ends with 1",
        "swarmd/cli/__init__.py",
        "        return error.exit_code\n",
        "        return ExitCode.FAILURE\n",
        ("tests/cli/test_root.py",),
    ),
)

WORTH = (
    Mutant(
        "a number at the edge of the tolerance is wrong",
        "swarmd/swarms/rewards.py",
        "abs(one - other) <= Fraction(tolerance)",
        "abs(one - other) < Fraction(tolerance)",
        ("tests/swarms/test_file.py",),
    ),
    Mutant(
        "a text just over its length is worth nothing",
        "swarmd/swarms/rewards.py",
        "max(0.0, 2 - length / most)",
        "max(0.0, 1 - length / most)",
        ("tests/swarms/test_file.py",),
    ),
    Mutant(
        "a problem that nobody solves is worth most",
        "swarmd/swarms/proposer/problems.py",
        "return 0.0 if share in (0.0, 1.0) else 1.0 - share",
        "return 1.0 - share",
        ("tests/swarms/proposer/test_problems.py",),
    ),
    Mutant(
        "a proposal of a held-out problem is valid",
        "swarmd/swarms/proposer/plan.py",
        "valid = mark.all_passed and not is_held_out(proposal.problem)",
        "valid = mark.all_passed",
        ("tests/swarms/proposer/test_plan.py",),
    ),
    Mutant(
        "one value, written in two ways, tells a solution from none",
        "swarmd/swarms/proposer/problems.py",
        "all(value == expected[0] for value in expected)",
        "len({test.expected for test in hidden}) < 2",
        ("tests/swarms/proposer/test_problems.py",),
    ),
    Mutant(
        "each trainer has an order of its own in sets of texts",
        "swarmd/daemon/service.py",
        'repeats=worker == "trainer"',
        "repeats=False",
        ("tests/daemon/test_parts.py::test_in_every_trainer_sets_of_texts_have_the_same_order",),
    ),
    Mutant(
        "of a data set on the Hub, its author's word is all that counts",
        "swarmd/swarms/file.py",
        "if max(known, claimed) > bytes_max:",
        "if claimed > bytes_max:",
        ("tests/swarms/test_hub_dataset.py",),
    ),
    Mutant(
        "a question counts as often as a peer sends it",
        "swarmd/swarms/rollouts.py",
        "        if key in seen:\n",
        "        if False:\n",
        ("tests/swarms/test_rollouts.py",),
    ),
    Mutant(
        "one peer's rollouts pass for another's",
        "swarmd/swarms/rollouts.py",
        "if (rollouts.peer, rollouts.round, rollouts.stage) != (ref.peer, ref.round, ref.stage):",
        "if (rollouts.round, rollouts.stage) != (ref.round, ref.stage):",
        ("tests/swarms/test_rollouts.py",),
    ),
    Mutant(
        "a program that failed counts as one that ran",
        "swarmd/swarms/code.py",
        'verdict is None or verdict.status != "ok" or not verdict.stdout.strip()',
        "verdict is None or not verdict.stdout.strip()",
        ("tests/swarms/test_code.py",),
    ),
)

AROUND = (*WEB, *SECRETS, *SANDBOX, *CARE, *LOOKING, *WORTH)
