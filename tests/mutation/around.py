"""Mistakes in what surrounds a node: web, sandbox, backups, units, the doctor, manifests, verbs, rewards."""

from tests.mutation.planting import read_mutants

AROUND = read_mutants(r"""
swarmd/observe/clocks.py
  clocks are taken to be right
    -     if lowest <= 0.0 <= highest:
    +     if True:
    tests/observe/test_clocks.py::test_a_skew_of_five_minutes_is_found_as_closely_as_messages_were_quick
swarmd/observe/timeline.py
  an event is shown before what caused it
    -                 if done[cause.node] <= cause.index:
    +                 if False:
    tests/observe/test_timeline.py
swarmd/observe/deliveries.py
  times of two clocks are compared more closely than can be known
    -         if least_s > 0:
    +         if most_s > 0:
    tests/observe/test_deliveries.py::test_times_that_the_logs_leave_open_are_not_decided
swarmd/web/guard.py
  any name of the server is answered
    - if not self._is_known_host(headers, scope):
    + if False:
    tests/web/test_guard.py::test_only_names_of_this_server_are_answered
  a page of another site may ask
    - if is_cross_origin(headers) or (
    + if (
    tests/web/test_guard.py::test_what_a_page_of_another_origin_sends_is_refused
  figures are told without the token
    - path in ("/metrics", "/api", *PROBES)
    + path in ("/api", *PROBES)
    tests/web/test_guard.py::test_without_the_token_nothing_of_the_node_is_told
  tokens may be guessed without end
    -         if not self._failures.try_charge(request_origin.get()):
    +         if False:
    tests/web/test_guard.py::test_wrong_tokens_are_counted_and_the_right_one_comes_in_all_the_same
  the form leads to another server
    - not text.startswith(("//", "/\\"))
    + not text.startswith("//")
    tests/web/test_guard.py::test_after_the_form_one_stays_on_this_server
swarmd/web/endpoints.py
  what is too much to work on waits without end
    - if self._bounded and (
    + if False and (
    tests/web/test_endpoints.py::test_one_address_may_ask_for_so_much_and_all_together_for_more
swarmd/uvicorn_server.py
  half requests keep their places
    -         if waiting:
    +         if False:
    tests/web/test_limits.py::test_half_requests_shut_nobody_out
swarmd/http_server.py
  an address that strangers reach needs no token
    - if not is_loopback(address.host) and not token:
    + if False:
    tests/test_http.py
  a token may be short
    - if len(token) < chars_min or not re.fullmatch
    + if not re.fullmatch
    tests/test_http.py
swarmd/web/stream.py
  any number of clients listen
    -         return len(self._origins) < CLIENTS_MAX or self._find_client_to_end(origin) is not None
    +         return True
    tests/web/test_stream.py::test_clients_have_a_bound_and_leaving_frees_a_place
  one address holds all places of the stream
    -         if most < held[origin] + 2:
    +         if True:
    tests/web/test_stream.py::test_one_address_keeps_nobody_else_out
swarmd/web/notifications.py
  two processes tell of one node
    -                 fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    +                 pass
    tests/web/test_notifications.py
  a layer that flaps is told of each time
    - patience_s = quiet_s if self.relapses else after_s
    + patience_s = after_s
    tests/web/test_notifications.py
  a failed message is logged with its address
    -             reason = reason.replace(secret, "[redacted]")
    +             pass
    tests/web/test_notifications.py::test_a_failure_is_told_without_its_secrets
  a program that is told gets all of the environment
    - environment = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    + environment = dict(os.environ)
    tests/web/test_notifications.py::test_a_program_gets_the_message_on_its_stdin_and_no_secret_of_ours
swarmd/config.py
  what the library logs of an address gets out
    -     log.propagate = False
    tests/web/test_notifications.py::test_no_record_of_the_library_gets_out
swarmd/observe/redaction.py
  what a field's name calls secret is logged
    - if depth > DEPTH_MAX or _SECRET_NAME.search(name):
    + if depth > DEPTH_MAX:
    tests/observe/test_redaction.py
  an address is logged with its password
    - shown = scheme + (REDACTED + at if user else at) + host
    + shown = scheme + user + at + host
    tests/observe/test_redaction.py
swarmd/secret_files.py
  a secret is written over what is there
    - os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    + os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    tests/dht/identity/test_identity.py
swarmd/backup/bundle.py
  a bundle leaves with secrets in it
    -         refuse_secrets(root, secrets)
    tests/backup/test_bundle.py::test_a_secret_anywhere_stops_it
swarmd/doctor/examination.py
  the doctor prints secrets
    - hide = redaction.Redactor(secrets).redact_known
    + hide = redaction.Redactor().redact_known
    tests/doctor/test_examination.py
  a warning of the doctor ends with 0
    - {"warning": ExitCode.FAILURE, "error": ExitCode.UNFIT}
    + {"error": ExitCode.UNFIT}
    tests/doctor/test_examination.py
    tests/cli/test_doctor.py
swarmd/manifest.py
  a manifest counts without its creator's signature
    - if not verify_signature(manifest.creator, value, signed_message(manifest)):
    + if not value:
    tests/test_manifest.py
  a recipe counts without its digest
    - if recipe_digest(manifest.recipe) != manifest.recipe.digest:
    + if False:
    tests/test_manifest.py
swarmd/sandbox/inside.py
  a program raises its limits again
    - (hard, hard + extra))
    + (hard, -1))
    tests/sandbox/test_escapes.py::test_what_a_program_reaches_for_is_not_given
swarmd/sandbox/launcher.py
  a program asks the kernel for whatever it likes
    -     apply_syscall_filter(order["filter"])
    tests/sandbox/test_escapes.py::test_what_a_program_reaches_for_is_not_given
    tests/sandbox/test_escapes.py::test_a_socket_cannot_be_opened
swarmd/sandbox/sandbox.py
  a program prints one byte less than allowed
    - max(len(self.stdout), len(self.stderr)) > self._output_bytes
    + max(len(self.stdout), len(self.stderr)) >= self._output_bytes
    tests/sandbox/test_escapes.py::test_a_byte_too_many_is_too_much_however_fast_the_program_ends
swarmd/daemon/service.py
  two swarms are mixed in one log
    - directory.refuse_other_logged_swarm(data, directory.swarm_of_state(state), directory.swarm_of_config(config))
    + pass
    tests/daemon/test_directory.py::test_a_node_does_not_start_on_another_swarms_log
  each trainer has an order of its own in sets of texts
    - repeats=worker == "trainer"
    + repeats=False
    tests/daemon/test_parts.py::test_in_every_trainer_sets_of_texts_have_the_same_order
swarmd/cli/local_swarm.py
  a local swarm is laid out over another
    -         refuse_other_swarm(place, asked, fix)
    +         continue
    tests/cli/test_one_swarm.py::test_local_does_not_mix_two_kinds
swarmd/backup/archive.py
  a member of a backup leads out of the directory
    - return cls.NAMES.fullmatch(name) is not None and not {".", ".."} & set(name.split("/"))
    + return cls.NAMES.fullmatch(name) is not None
    tests/backup/test_archive.py::test_a_name_that_leads_elsewhere_is_not_a_member
  a restore writes over what is there
    - if all(path == making or path.name == _FOREIGN for path in root.iterdir()):
    + if True:
    tests/backup/test_create.py::test_nothing_is_overwritten
swarmd/backup/backup.py
  the key in a backup may be another node's
    - parse_identity(files[IDENTITY], "the backup's key").peer_id != manifest.peer:
    + not parse_identity(files[IDENTITY], "the backup's key").peer_id:
    tests/backup/test_create.py::test_what_is_sealed_is_the_nodes_own_key_and_plain_names
  an old archive of a move is taken for the node as it is
    - if time.time() - manifest.made_at > MOVED_S_MAX:
    + if False:
    tests/backup/test_create.py::test_only_a_fresh_backup_of_a_move_goes_on_where_it_was
swarmd/units.py
  a moved node is open in both places for a moment
    -                 source.moved.unlink()
    -                 raise
    +                 raise
    tests/units/test_units.py::test_what_comes_meanwhile_is_not_overwritten_and_nothing_is_closed
  a configuration that somebody changed is lost
    -             os.link(path, kept)
    tests/units/test_units.py::test_what_is_replaced_is_kept
  a user's service asks for what only root's can do
    - text = ROOT_ONLY.sub("", text)
    + pass
    tests/units/test_units.py::test_systemd_takes_a_users_units_without_a_word
swarmd/observe/metrics.py
  an old answer of the daemon counts as one of now
    - if status is not None and now - status.at > STALE_S:
    + if False:
    tests/observe/test_metrics.py
  a daemon that is down is shown as up
    - yield "daemon_up", (), 0.0
    + yield "daemon_up", (), 1.0
    tests/observe/test_metrics.py
swarmd/doctor/machine.py
  a peer's wrong clock is measured by ours
    - if abs(skew_s - middle) > SKEW_MAX_S
    + if abs(skew_s) > SKEW_MAX_S
    tests/doctor/test_network.py
  what the node has on disk counts twice against the room
    - + checkpoints - _measure_used_bytes(data)
    + + checkpoints
    tests/doctor/test_findings.py
swarmd/cli/__init__.py
  every deliberate error ends with 1
    -         return error.exit_code
    +         return ExitCode.FAILURE
    tests/cli/test_root.py
swarmd/swarms/packages.py
  code of another content is run
    -         if found != package:
    +         if found is None:
    tests/swarms/test_packages.py
  any function of what every node has may be called
    -     if refused or any(
    +     if False and any(
    tests/swarms/test_packages.py::test_no_manifest_names_what_every_node_has
swarmd/sandbox/session.py
  a program that hangs is waited for without end
    -                 if time.monotonic() >= due:
    +                 if False:
    tests/sandbox/test_session.py::test_a_program_that_breaks_a_limit_has_ended
swarmd/swarms/truths.py
  a swarm that would never pay for right answers is made
    -     if unpaid:
    +     if False:
    tests/swarms/test_file.py
swarmd/swarms/text.py
  a part of a formula is paid as a number
    -     if _LETTERS.match(after) and not _UNITS.match(after):
    +     if False:
    tests/swarms/test_text.py
swarmd/swarms/dataset.py
  the cells of a column of texts become numbers
    - list(column) if name in texts else _convert_column_cells(list(column))
    + _convert_column_cells(list(column))
    tests/swarms/test_dataset.py
swarmd/swarms/rewards.py
  a number at the edge of the tolerance is wrong
    - abs(one - other) <= Fraction(tolerance)
    + abs(one - other) < Fraction(tolerance)
    tests/swarms/test_rewards.py
  a reward function that always fails goes on for ever
    - if self._failures[name] >= FAILURES_MAX:
    + if False:
    tests/swarms/test_rewards.py
  a text just over its length is worth nothing
    - max(0.0, 2 - length / most)
    + max(0.0, 1 - length / most)
    tests/swarms/test_rewards.py
swarmd/swarms/proposer/problems.py
  a problem that nobody solves is worth most
    - return 0.0 if share in (0.0, 1.0) else 1.0 - share
    + return 1.0 - share
    tests/swarms/proposer/test_problems.py
  one value, written in two ways, tells a solution from none
    - all(value == expected[0] for value in expected)
    + len({test.expected for test in hidden}) < 2
    tests/swarms/proposer/test_problems.py
swarmd/swarms/proposer/plan.py
  a proposal of a held-out problem is valid
    - valid = mark.all_passed and not is_held_out_problem(proposal.problem)
    + valid = mark.all_passed
    tests/swarms/proposer/test_plan.py
swarmd/swarms/dataset.py
  of a data set on the Hub, its author's word is all that counts
    - if max(known, claimed) > bytes_max:
    + if claimed > bytes_max:
    tests/swarms/test_dataset.py
swarmd/swarms/rollouts.py
  a question counts as often as a peer sends it
    -         if key in seen:
    +         if False:
    tests/swarms/test_rollouts.py
  one peer's rollouts pass for another's
    - if (rollouts.peer, rollouts.round, rollouts.stage) != (ref.peer, ref.round, ref.stage):
    + if (rollouts.round, rollouts.stage) != (ref.round, ref.stage):
    tests/swarms/test_rollouts.py
swarmd/swarms/code.py
  a program that failed counts as one that ran
    - verdict is None or verdict.status != "ok" or not verdict.stdout.strip()
    + verdict is None or not verdict.stdout.strip()
    tests/swarms/test_code.py
""")
