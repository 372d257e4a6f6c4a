"""Mistakes in weights that travel: what is believed of them, and what becomes of a model."""

from tests.mutation.planting import read_mutants

WEIGHTS = read_mutants(r"""
swarmd/weights/offered.py
  a chunk of weights that is another one is kept
    -         if hashlib.sha256(chunk).hexdigest() != self.file.chunk_digest(index):
    +         if False:
    tests/weights/test_offered.py::test_a_wrong_chunk_is_not_kept
  right chunks make any file
    -             if found != self.file.digest:
    +             if False:
    tests/weights/test_offered.py::test_right_chunks_of_a_file_with_another_digest_leave_nothing
  what an earlier life left of a file counts whatever it is
    - if read_chunk(self.partial, self.file, each) is None} if old else every
    + if False} if old else every
    tests/weights/test_offered.py::test_the_next_life_goes_on_with_the_chunks_that_are_right
  a chunk that has changed on the disk is given
    -     return chunk if hashlib.sha256(chunk).hexdigest() == file.chunk_digest(index) else None
    +     return chunk
    tests/weights/test_offered.py::test_a_chunk_that_has_changed_on_the_disk_is_not_given
  fetched weights are given on for ever
    - if self._is_offered(manifest)
    + if manifest
    tests/weights/test_offered.py::test_what_nobody_offers_is_not_given_on
  a delta is made from a damaged offer
    -         if not is_intact(old):
    +         if False:
    tests/weights/test_offered.py::test_no_delta_begins_at_a_file_that_is_damaged
swarmd/weights/manifest.py
  another manifest than was announced is believed
    -     if digest and hashlib.sha256(encoded).hexdigest() != digest:
    +     if False:
    tests/weights/test_manifest.py::test_a_bad_manifest_is_refused
  a manifest has chunks without end
    - len(file) > CHUNKS_MAX or len(file.chunks) != len(file) * DIGEST_BYTES:
    + len(file.chunks) != len(file) * DIGEST_BYTES:
    tests/weights/test_manifest.py::test_a_bad_manifest_is_refused
  a delta is taken whatever its base
    - if delta.base == base)
    + if base)
    tests/weights/test_manifest.py::test_what_is_encoded_is_decoded
swarmd/weights/tensors.py
  weights that are no numbers are loaded
    -                 if bool(np.any((words & kind(exponent)) == kind(exponent))):
    +                 if False:
    tests/weights/test_tensors.py::test_values_that_are_no_numbers_are_found
  a delta may end before its base does
    -         if changes.read(1):
    +         if False:
    tests/weights/test_tensors.py::test_a_bad_delta_is_refused
swarmd/dht/weights.py
  weights are fetched however large they are
    -     if file.size_bytes > bytes_max:
    +     if False:
    tests/dht/test_weights.py::test_more_than_is_wanted_is_not_fetched
  a manifest may say otherwise than its offer
    -     if (manifest.architecture, manifest.tokenizer, manifest.round) != said:
    +     if False:
    tests/dht/test_weights.py::test_a_manifest_that_says_otherwise_than_its_offer_is_refused
  a peer that hangs keeps its chunk
    - else max(since)) <= doubted:
    + else max(since)) <= 0:
    tests/dht/test_weights.py::test_a_peer_that_hangs_or_gives_garbage_slowly_holds_up_nothing
  a chunk that is here is asked for once more
    -             if peer in askers or index not in self._into.missing:
    +             if peer in askers:
    tests/dht/test_weights.py::test_a_peer_that_hangs_or_gives_garbage_slowly_holds_up_nothing
  anybody's weights are taken
    -             if places and peer != view.peer_id and not self._evidence.is_banned(peer, now):
    -                 ranks[peer] = (places[0], credit)
    +             if peer != view.peer_id:
    +                 ranks[peer] = (max(places, default=-9), credit)
    tests/dht/test_weights.py::test_the_coordinators_are_taken_and_no_strangers
  weights of a proven equivocator are taken
    -  and not self._evidence.is_banned(peer, now):
    + :
    tests/dht/test_weights.py::test_of_whoever_has_signed_two_reports_none_are_taken
  whoever claims most is asked first
    - (ranks[each[0]], each[1].round, each[0])
    + (each[1].accuracy or 0.0, each[0])
    tests/dht/test_weights.py::test_of_peers_with_credit_the_longest_credited_is_taken_whatever_others_claim
  weights of another architecture are fetched
    - == (command.architecture, command.tokenizer)
    + != ()
    tests/dht/test_weights.py::test_another_model_is_not_even_asked_for
  an offer keeps another one of its manifest from being tried
    -     return msgspec.structs.replace(offer, accuracy=None).encode()
    +     return offer.manifest
    tests/dht/test_weights.py::test_offers_of_one_manifest_that_claim_otherwise_are_each_taken_by_themselves
  a damaged base of a delta stays
    -         if wanted and not is_intact(each):
    +         if False:
    tests/dht/test_weights.py::test_a_damaged_base_goes_and_all_is_fetched
    tests/dht/test_weights.py::test_a_damaged_file_is_fetched_anew
  a wrong delta is the end of a fetch
    -             if base is None:
    -                 raise
    +             raise
    tests/dht/test_weights.py::test_a_delta_that_makes_another_file_has_all_fetched
  peers' weights fill the disk
    -         if free - manifest.whole.size_bytes < least:
    +         if False:
    tests/dht/test_weights.py::test_a_disk_that_is_nearly_full_stays_so
  a newcomer for which the owner has no time for a minute gives up
    -  or drop_tried_offers(fitting, tried - unfinished)
    tests/dht/test_weights.py
  fetched weights go with the manifest of others
    - _remove_other_files(path.parent, needed | fetched)
    + _remove_other_files(path.parent, needed)
    tests/dht/test_weights.py::test_what_was_fetched_stays_while_an_offer_comes_to_nothing
  all that say they offer the same are asked
    - same.manifest == wanted)][:HOLDERS_MAX]
    + same.manifest == wanted)]
    tests/dht/test_weights.py::test_of_many_that_say_they_offer_the_same_few_are_asked_and_its_owner_first
  the same peer's weights are averaged with each time
    -             if command.average:
    +             if False:
    tests/dht/test_weights.py::test_of_many_some_are_drawn_anew_each_time_and_whoever_gives_nothing_is_made_up_for
  what was averaged with is fetched again under another name
    -         if manifest.whole.digest in spent:
    +         if False:
    tests/dht/test_weights.py::test_what_was_averaged_with_is_not_fetched_again_by_whatever_name_nor_what_is_old
  one that hangs makes what others gave for a mean too late
    - left_s / 2 if command.average else left_s
    + left_s
    tests/dht/test_weights.py::test_a_peer_that_hangs_does_not_make_what_others_gave_too_late
  one peer's weights count twice in a mean under another name
    -  | {name.removesuffix(SUFFIX) for name in kept}
    tests/dht/test_weights.py::test_what_several_offer_alike_counts_once_in_a_mean
swarmd/training/peer_weights.py
  weights that are worse here are adopted
    - return "" if after > before else
    + return "" if True else
    tests/training/test_adopting.py::test_weights_that_are_no_better_here_are_refused_whatever_they_claim
  weights that are as good here are adopted
    - return "" if after > before else
    + return "" if after >= before else
    tests/training/test_adopting.py::test_weights_that_are_no_better_here_are_refused_whatever_they_claim
  refused weights stay in the model
    -             policy.load_weights(kept)
    +             pass
    tests/training/test_adopting.py::test_weights_that_are_no_better_here_are_refused_whatever_they_claim
  another file than was fetched is adopted
    -         if hash_file(path) != offer.digest:
    +         if False:
    tests/training/test_adopting.py::test_a_file_that_is_gone_or_another_is_refused
  weights with which stages fail are begun from again
    -     if tried.exists() and tried.stat().st_size >= ATTEMPTS_MAX:
    +     if False:
    tests/training/test_adopting.py::test_weights_with_which_stages_fail_are_left_alone_the_third_time
  weights of another model are loaded
    -     if shapes != wanted:
    +     if False:
    tests/training/test_adopting.py::test_what_is_no_model_of_this_architecture_changes_nothing
  adapters fit whatever their factor is
    - [policy.fixed_digest, settings.r, settings.lora_alpha]
    + [policy.fixed_digest, settings.r]
    tests/training/test_adopting.py::test_adapters_of_another_shape_or_none_are_another_architecture
  one offer pulls a mean as far as it likes
    -     trimmed = int(len(offers) >= TRIMMED_FROM)
    +     trimmed = 0
    tests/training/test_adopting.py::test_one_of_four_offers_cannot_pull_the_mean_beyond_the_others
  a long offer counts more than others
    - min(1.0, bound / length) if length
    + 1.0 if length
    tests/training/test_adopting.py::test_a_long_offer_is_shortened_to_the_median_length_and_a_mean_of_few_is_plain
  a mean that has forgotten a task is begun from
    -         if measured.correct < min(
    +         if False and measured.correct < min(
    tests/training/test_adopting.py::test_what_is_worse_beyond_chance_is_named
  means take a task little by little
    - min(max(best.get(task, 0.0), without) - chance, without + chance)
    + without - chance
    tests/training/test_adopting.py::test_means_cannot_take_a_skill_little_by_little
swarmd/core/weights.py
  weights that come after the wait are begun from
    -     if turn.remove_pending(event.command) is None:
    -         return
    -     _end_wait(turn, None
    +     turn.remove_pending(event.command)
    +     _end_wait(turn, None
    tests/core/test_weights.py
  every round waits for weights
    -  and catch_up.round == round
    tests/core/test_weights.py
  weights are asked for after every round that was missed
    -     return 0 < enough <= missed
    +     return 0 < enough and missed > 0
    tests/core/test_weights.py
  a stage waits for what its weights are averaged with
    - not catch_up.over and not catch_up.average and
    + not catch_up.over and
    tests/core/test_weights.py::test_what_is_averaged_with_is_asked_for_in_its_rounds_and_no_stage_waits_for_it
  an offer is averaged with again and again
    - _end_wait(turn, None if spent else taken)
    + _end_wait(turn, taken)
    tests/core/test_weights.py::test_an_offer_is_taken_once_unless_it_changed_and_none_that_is_many_rounds_old
""")
