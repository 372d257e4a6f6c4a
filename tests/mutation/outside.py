"""Mistakes in what members' programs, authors of files, endpoints and visitors may cost."""

from tests.mutation.planting import read_mutants

OUTSIDE = read_mutants(r"""
swarmd/training/models/source.py
  a model's own code may be run
    - WITHOUT_CODE = {"trust_remote_code": False}
    + WITHOUT_CODE = dict[str, bool]()
    tests/training/models/test_model.py::test_code_of_a_models_author_is_neither_run_nor_asked_about
  a node that begins from other weights than its swarm says nothing
    -     if found == named:
    +     if found:
    tests/training/models/test_files.py::test_a_node_says_that_it_begins_from_other_weights_than_its_swarm
swarmd/training/models/loading.py
  weights that a model's files lack are made up
    -     lost = sorted(missing)
    +     lost = list[str]()
    tests/training/models/test_loading.py::test_weights_that_are_not_the_models_are_refused_with_the_cause
swarmd/files.py
  a pipe in the place of a file is read
    -     if not stat.S_ISREG(mode):
    +     if stat.S_ISDIR(mode):
    tests/eventlog/test_special_files.py
    tests/test_files.py
swarmd/web/history.py
  whoever kept a state may have it unpacked without a bound
    - stream.decompress(self.packed, STATE_BYTES_MAX)
    + stream.decompress(self.packed)
    tests/web/test_keeping.py::test_a_state_that_was_kept_is_unpacked_within_a_bound
swarmd/chain/watcher.py
  an endpoint that answers to no avail is asked for ever
    - if self._failures % LEFT_AFTER == 0 and
    + if False and
    tests/chain/test_watcher.py::test_an_endpoint_that_answers_to_no_avail_is_left_for_another
  one endpoint of another chain ends a node
    - if not self._endpoints.distrust_current_endpoint(error.message):
    + if True:
    tests/chain/test_watcher.py::test_one_endpoint_of_another_chain_or_contract_does_not_end_a_node
swarmd/chain/blocks.py
  log entries of any contract are taken
    - if not _matches_request(entry, asked):
    + if False:
    tests/chain/test_watcher.py::test_an_endpoint_that_gives_entries_unasked_is_left_for_another
swarmd/chain/submitter.py
  what replaces a transaction that nobody took is dearer
    - tracked.unwanted.add(prepared.hash)
    + pass
    tests/chain/test_submitter.py::test_one_that_no_endpoint_takes_for_want_of_gas_is_signed_anew
swarmd/chain/endpoints.py
  a websocket's handshake is led anywhere
    - aiohttp.ClientSession(trace_configs=[_redirect_refusing_trace()])
    + aiohttp.ClientSession()
    tests/chain/test_endpoints.py::test_a_websocket_leads_nowhere_else
swarmd/uvicorn_server.py
  the connection that waited longest gives way, whoever has most
    - max(waiting, key=lambda each: (counts[each.origin], -each.quiet_since)).abort()
    + max(waiting, key=lambda each: -each.quiet_since).abort()
    tests/web/test_limits.py::test_the_address_with_most_connections_makes_room
  a request that is being answered gives way
    - [each for each in others if each.is_waiting_for_client]
    + others
    tests/web/test_limits.py::test_with_all_connections_busy_health_is_still_told
swarmd/toml_text.py
  a name of any number of parts is read
    -     check_name_lengths(text)
    -     try:
    -         tables
    +     try:
    +         tables
    tests/test_toml.py::test_a_name_of_thousands_of_parts_is_refused_before_it_is_read
swarmd/swarms/programs.py
  one peer's slow programs spend all peers' seconds
    -         payer = author if self._peers is None or author in self._peers else ""
    +         payer = ""
    tests/swarms/test_code.py::test_a_peers_slow_programs_spend_no_other_peers_seconds
swarmd/sandbox/sandbox.py
  a program that ended with its peer's share counts as one that takes too long
    - ended.cut == "deadline" and wall_s < self.limits.wall_s
    + False
    tests/swarms/test_code.py::test_what_ended_with_a_peers_share_is_not_remembered_as_too_slow
""")
