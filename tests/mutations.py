"""Plants faults in the product, one at a time, and says which of them the tests catch.

    python tests/mutations.py                      # every fault, by the quick tests of its subject
    python tests/mutations.py --folder tests/data  # the faults of that folder
    python tests/mutations.py --name window-lost   # one fault; may be repeated
    python tests/mutations.py --places             # no tests: whether every fault has its place

A fault is a few lines of the product, which must be there exactly once, in whatever file and indentation, and the lines
that take their place in a copy of the tree, whose environment imports the copy. The test that caught it before runs
first, then the folder of its subject up to the first failure; a test that fails without the fault too does not count.
``--slow`` runs the slow tests too, ``--all-tests`` the whole suite once for all that survive together, and ``--record``
writes the tests that catch into this file. The exit code is 1 if a fault survives or has no place.
"""

# Lines of the product and names of tests keep their length.
# ruff: noqa: E501

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shutil
import signal
import site
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[1]
PRODUCT = ("stablernn", "cli", "registry", "runtime", "server", "client", "native", "papers")
MAX_SECONDS = 1800
"""Time after which a run of tests counts as hanging, and the fault as caught."""

# Each fault: its name and the tests of its subject; the test that catches it, if one does; what is replaced by what.
FAULTS = """
# window-lost tests/data/test_windows.py
< tests/data/test_windows.py::test_windows_are_all_there_are_but_those_without_any_target_or_context
- candidates = np.arange(max(start, least[number]), stop - horizon + 1, dtype=np.int64)
+ candidates = np.arange(max(start, least[number]), stop - horizon, dtype=np.int64)
# longer-context-of-another-series tests/training/batches
< tests/training/batches/test_warm_up.py::test_longer_windows_are_the_series_cut_by_hand
- more = np.clip((end - self.context_length) // multiple * multiple, 0, extra)
+ more = np.clip(end // multiple * multiple, 0, extra)
# window-knows-the-time-before-it tests/data
< tests/data/test_covariates.py::test_irregular_rows_say_how_much_time_lies_between_them
- dt[:, 0] = 1
- return x, dt
+ return x, dt
# scaling-sees-the-test tests/data
< tests/data/test_windows.py::test_training_values_end_before_validation
- held_out = self.validation_steps + self.test_steps
+ held_out = self.validation_steps
# time-step-of-the-test tests/data
< tests/data/readers/test_npz.py::test_the_regular_step_is_that_of_training_alone
- step = None if train.times is None else median_time_step(train.times)
+ step = None if train.times is None else median_time_step([*train.times, *((test and test.times) or [])])
# validation-ignores-the-seed tests/data/test_classification.py
< tests/data/test_classification.py::test_same_seed_gives_the_same_split_for_ever
- random = np.random.RandomState(seed)
- is_validation = np.zeros(len(y), dtype=bool)
+ random = np.random.RandomState(0)
+ is_validation = np.zeros(len(y), dtype=bool)
# missing-is-zero-in-a-mean tests/data/table
< tests/data/table/test_repairs.py::test_rows_are_aggregated_and_missing_values_left_out
- count = np.add.reduceat(is_present.astype(np.int64), bins.starts, axis=0)
+ count = np.add.reduceat(np.ones_like(is_present, np.int64), bins.starts, axis=0)
# repeated-hour-of-three tests/data/table/test_local_times.py
< tests/data/table/test_local_times.py::test_a_repeated_hour_that_is_there_once_is_the_first_pass_and_counted
- is_second_pass = position >= (count + 1) // 2
+ is_second_pass = position >= count // 2
# week-53-of-52 tests/data/table
< tests/data/table/test_numeric_timestamps.py::test_periods_that_do_not_exist_are_refused
- return first + 7 * (periods - 1), fits & (7 * periods <= next_first - first)
+ return first + 7 * (periods - 1), fits & (periods <= 53)
# worst-epoch-kept tests/training/loop
< tests/training/loop/test_trainer.py::test_the_best_weights_are_kept
- sign = 1 if direction(self.objective.headline) == "higher" else -1
+ sign = -1 if direction(self.objective.headline) == "higher" else 1
# patience-of-one-more tests/training/loop
< tests/training/loop/test_trainer.py::test_patience
- return settings.patience is not None and position.stale >= settings.patience
+ return settings.patience is not None and position.stale > settings.patience
# members-clipped-together tests/training/loop
< tests/training/loop/test_trainer.py::test_each_member_is_clipped_alone
- for parameters in self._member_parameters:
+ for parameters in [self._parameters]:
# shuffle-not-resumed tests/training/test_resume.py
< tests/training/test_resume.py::test_stopping_again_and_again
- self._shuffle_start = random["shuffle"]
+ self._shuffle_start = self._shuffle.get_state()
# state-carried-to-the-next-batch tests/training/tasks/predict_next
< tests/training/tasks/predict_next/test_stretches.py::test_the_pieces_of_an_epoch_are_every_sequence_once
- return Minibatch(batch, count_targets(part.y), is_first=number == 0)
+ return Minibatch(batch, count_targets(part.y), is_first=False)
# quantile-levels-swapped tests/models/test_models.py
< tests/models/test_models.py::test_the_forecast_loss_is_the_mean_pinball_loss_over_observed_targets
- pinball = torch.maximum(levels * error, (levels - 1) * error).mean(dim=1) * observed[..., None]
+ pinball = torch.maximum((1 - levels) * error, -levels * error).mean(dim=1) * observed[..., None]
# mase-knows-the-test tests/training/evaluation
< tests/training/evaluation/test_evaluate.py::test_the_scale_of_mase_is_of_the_training_steps_alone
- self._scale = np.stack([seasonal_scale(values[:, targets], data.season) for values in data.training_values()])
+ self._scale = np.stack([seasonal_scale(each.values[:, targets], data.season) for each in data.series])
# conformal-rank-of-one-less tests/training/calibration/test_conformal.py
< tests/training/calibration/test_conformal.py::test_the_offset_is_the_finite_sample_quantile_of_the_scores
- rank = math.ceil(len(scores) * level * (1 + 1 / worth) - 1e-9)
+ rank = math.ceil(len(scores) * level - 1e-9)
# backtest-state-over-a-gap tests/training/evaluation/test_backtest.py
< tests/training/evaluation/test_backtest.py::test_a_window_without_truth_is_left_out_and_the_state_begins_anew
- has_state = (self._state_positions[origins[current, 0]] == position - 1) & (position > 0)
+ has_state = (self._state_positions[origins[current, 0]] >= 0) & (position > 0)
# search-sees-the-test tests/training/search
< tests/training/search/test_resampling.py::test_no_test_step_is_in_any_part_of_a_series
- end = data.test_steps + number * data.validation_steps
+ end = number * data.validation_steps
# suspended-process-takes-a-job-over tests/training/jobs
< tests/training/jobs/test_locks.py::test_time_in_which_nobody_watches_counts_one_heartbeat
- watch.silent_seconds += min(now - watch.looked_at, max(heartbeat, self.seconds))
+ watch.silent_seconds += now - watch.looked_at
# partner-weighs-as-its-mixture tests/training/batches
< tests/training/batches/test_losses.py::test_the_sequence_that_is_mixed_in_brings_its_weight
- partner_weight=(1 - mixture.weights) * weight[mixture.partners],
+ partner_weight=(1 - mixture.weights) * weight,
# exponential-of-too-few-squarings tests/cells/guarantees
< tests/cells/guarantees/test_orthogonal.py::TestParametrizations::test_skew_matrices_become_rotations
- squarings = max(0, math.frexp(float(precise.detach().abs().sum(dim=0).max()))[1])
+ squarings = max(0, math.frexp(float(precise.detach().abs().sum(dim=0).max()))[1] - 3)
# rotation-not-haar tests/cells
< tests/cells/guarantees/test_orthogonal.py::TestInitialMatrices::test_haar_start_has_the_moments_of_the_uniform_distribution
- rotation = q * torch.sign(r.diagonal())
+ rotation = q
# padding-moves-the-state tests/engines
< tests/engines/test_fused.py::test_values_and_gradients_are_those_of_the_loop
- shortest = 0 if valid is None else int(valid.sum(dim=1).min())
+ shortest = 0 if valid is None else int(valid.sum(dim=1).max())
# gradient-of-padding-dropped tests/engines/test_fused.py
< tests/engines/test_fused.py::test_values_and_gradients_are_those_of_the_loop
- g[..., ended, :] += scale * grad_outputs[end // repeats :, ..., ended, :].sum(dim=0)
+ g[..., ended, :] += scale * grad_outputs[end // repeats + 1 :, ..., ended, :].sum(dim=0)
# scan-gradient-not-conjugate tests/engines/test_scan.py
< tests/engines/test_scan.py::test_values_and_gradients_equal_those_of_the_loop
- conjugate = _conjugate(decay) if is_constant else decay
+ conjugate = decay
# closed-gates-divide-zero-by-zero tests/engines/test_gated_scan.py
< tests/engines/test_gated_scan.py::test_closed_gates
- if not total.min() > _SMALLEST_TOTAL:
+ if not total.min() >= 0:
# substeps-rounded-down tests/cells/irregular_time
< tests/cells/irregular_time/test_every_timed_cell.py::test_no_part_of_a_step_is_longer_than_a_regular_one
- return max(1, math.ceil(longest))
+ return max(1, math.floor(longest))
# maximum-of-the-initial-zeros tests/models
< tests/models/test_models.py::test_a_padded_batch_equals_each_sequence_step_by_step
- else torch.where(count > 0, torch.maximum(value, output), output)
+ else torch.maximum(value, output)
# padding-counts-as-observed tests/models
< tests/models/test_preprocessing.py::test_a_sequence_equals_its_steps_to_the_bit
- if valid is not None:
- observed = observed & valid[..., None]
- scaled = (x - self.mean) / self.scale
+ scaled = (x - self.mean) / self.scale
# norm-without-rounding tests/bounds
< tests/bounds/test_rounding.py::TestUnderflow::test_the_bound_on_a_norm_keeps_its_margin
- return float(np.linalg.norm(matrix, 2)) + rounding_error_bound(matrix)
+ return float(np.linalg.norm(matrix, 2))
# interval-without-rounding tests/bounds
< tests/bounds/test_bounded_inputs.py::TestIntervals::test_an_affine_range_holds_what_float32_computes
- margin = (matrix.shape[1] + 4) * FLOAT32_EPSILON * (np.abs(matrix) @ self.modulus + np.abs(bias))
+ margin = 0.0
# inequality-without-rounding tests/bounds
< tests/bounds/test_rounding.py::TestUnderflow::test_a_product_that_underflows_proves_no_rate_that_is_too_small
- lowest = float(values[0]) - self._gram_error - error_of_multipliers
+ lowest = float(values[0])
# irregular-rate-of-regular-steps tests/bounds
< tests/bounds/test_irregular.py::test_an_euler_layer_for_irregular_time_contracts_where_the_regular_one_does
- rate = math.exp(bound.rate - 1) * (1 + 4 * EPSILON) if is_representable else math.inf
+ rate = bound.rate
# state-that-only-grows-by-rounding tests/bounds
< tests/bounds/test_bounded_inputs.py::TestIntervals::test_rounding_accumulates_where_little_is_forgotten
- remaining = share - 16 * FLOAT32_EPSILON
+ remaining = share
# frequencies-between-the-grid tests/bounds/test_convolution.py
< tests/bounds/test_convolution.py::test_the_bound_for_windows_of_any_length_is_never_below
- return (largest + rounding) / math.cos(math.pi * degree / _FREQUENCIES) * (1 + 4 * EPSILON)
+ return largest + rounding + 0 * degree
# inverse-metric-forgotten tests/bounds/test_soundness.py
< tests/bounds/test_soundness.py::test_no_step_exceeds_what_is_proved
- output_gain = norm_upper_bound(np.linalg.inv(norm.metric)[:output]) * inverse_error_factor(norm.metric)
+ output_gain = norm_upper_bound(norm.metric[:output]) * inverse_error_factor(norm.metric)
# mix-at-the-wrong-end-of-an-interval tests/bounds/test_bounded_inputs.py
< tests/bounds/test_bounded_inputs.py::TestLargestValues::test_each_is_at_least_the_maximum_of_a_grid_and_not_much_more
- difference = new(shares[1:]) * safe - old
+ difference = new(shares[:-1]) * safe - old
# gain-of-the-mean-row tests/bounds/test_exact_bounds.py
< tests/bounds/test_exact_bounds.py::test_no_gain_in_a_weighted_infinity_norm_is_exceeded
- return float(row_norms(matrix).max())
+ return float(row_norms(matrix).mean())
# gap-of-one-sample-less tests/certificates/test_cascade.py
< tests/certificates/test_cascade.py::TestGap::test_of_scalar_linear_layers_it_is_exact
- effect, largest_error = np.zeros(len(self.step)), 0.0
- for _ in range(steps):
+ effect, largest_error = np.zeros(len(self.step)), 0.0
+ for _ in range(steps - 1):
# stack-without-feedthrough tests/certificates
< tests/certificates/test_cascade.py::TestComparisonSystem::test_of_scalar_linear_layers_the_effect_of_a_start_is_exact
- state_effect = _scaled(bound.output_gain, step[depth]) + _scaled(feedthrough, state_effect)
+ state_effect = _scaled(bound.output_gain, step[depth])
# stack-called-non-expansive tests/certificates
< tests/certificates/test_certificate.py::TestKinds::test_a_stack_of_layers_that_never_forget_is_not_non_expansive
- if all(len(stack.bounds) == 1 and stack.rate <= 1 + tolerance for stack in proved):
+ if all(stack.rate <= 1 + tolerance for stack in proved):
# repeated-values-count-once tests/robustness/test_radius.py
< tests/robustness/test_radius.py::test_values_count_as_often_as_patches_and_gaps_repeat_them
- growth = np.delete(bounds.growth(max(steps, 1))[label], label) * math.sqrt(repeats) * _SAFE
+ growth = np.delete(bounds.growth(max(steps, 1))[label], label) * _SAFE
# quantization-error-not-passed-on tests/certificates/test_quantization.py
< tests/certificates/test_quantization.py::test_neurons_pass_the_errors_of_others_on
- neuron_gain = norm_upper_bound(metric @ step.G) * norm_upper_bound(propagation)
+ neuron_gain = norm_upper_bound(metric @ step.G)
# warm-up-counts tests/dynamics/test_lyapunov.py
< tests/dynamics/test_lyapunov.py::test_growth_within_the_warm_up_is_not_counted
- if t >= warm_up:
- log_growth += torch.where(torch.from_numpy(ends > t)[:, None], log_lengths, 0.0)
+ log_growth += torch.where(torch.from_numpy(ends > t)[:, None], log_lengths, 0.0)
# parity-lets-nan-pass tests/export/test_parity.py
< tests/export/test_parity.py::test_a_difference_that_is_no_number_fails_parity
- if not step_error <= allowed:
+ if step_error > allowed:
# output-of-a-graph-fused-away tests/export
< tests/export/test_intake.py::test_a_product_that_is_an_output_stays
- uses.update(value.name for value in graph.output)
- # A product that something else reads too must stay a node of its own.
+ # A product that something else reads too must stay a node of its own.
# token-lives-twice tests/runtime/test_state_token.py
< tests/runtime/test_state_token.py::test_it_ends
- if expires < time.time():
+ if expires + self.ttl_seconds < time.time():
# padding-of-a-batch-counts tests/server/batching/test_batch_parity.py
< tests/server/batching/test_batch_parity.py::test_whole_sequences
- # Its padding does not count.
- stacked[span] = batch_item.time
+ stacked[span] = time
# one-bad-request-fails-all tests/server/batching
< tests/server/batching/test_batch_parity.py::test_one_bad_request_in_a_batch_fails_alone
- if bad := next((name for name, is_broken in broken.items() if is_broken[span].any()), None):
+ if bad := next((name for name, is_broken in broken.items() if is_broken.any()), None):
# field-of-a-graph-twice tests/runtime/test_graph_safety.py
< tests/runtime/test_graph_safety.py::test_an_attribute_with_two_graphs_is_refused
- if number in fields and number not in repeated:
+ if number in fields and number not in repeated and kind != "attribute":
# lock-not-taken tests/registry
< tests/registry/test_interrupted.py::test_processes_that_publish_at_once_get_distinct_versions_and_readers_see_whole_ones
- lock.acquire(timeout=self.lock_timeout_seconds)
+ pass
# folder-not-synced tests/registry/test_atomic_io.py
< tests/registry/test_atomic_io.py::test_the_folder_of_a_renamed_file_is_synced
- # Until its folder is synced, a power cut may undo the rename.
- sync_folder(path.parent)
+ pass
# alias-moves-under-a-changed-policy tests/registry
< tests/registry/test_aliases.py::test_a_policy_that_is_set_while_the_move_is_written_counts
- if (policy.rules(alias), policy.last_line(alias)) != (move.rules, move.policy_line):
+ if policy.rules(alias) is None:
# future-stamps-not-of-the-file tests/data
< tests/data/test_covariates.py::test_irregular_rows_of_the_future_keep_their_stamps
- if self.ahead and horizon <= len(self.ahead[sample]):
+ if self.ahead and horizon < len(self.ahead[sample]):
# first-row-is-no-last-value tests/data/table
< tests/data/table/test_repairs.py::test_the_last_value_may_stand_in_the_first_row
- return np.where(last >= 0, np.take_along_axis(values, np.maximum(last, 0), axis=0), np.nan), 0
+ return np.where(last > 0, np.take_along_axis(values, np.maximum(last, 0), axis=0), np.nan), 0
# log-cached-too-early tests/registry/test_log_cache.py
< tests/registry/test_log_cache.py::test_a_status_of_a_moment_ago_does_not_stand_for_the_log
- is_stable = status is not None and status == _read_status(path) and _is_settled(status)
+ is_stable = status is not None and status == _read_status(path)
# version-compared-as-text tests/server/repository
< tests/server/repository/test_model_repository.py::test_a_name_answers_with_its_highest_number
- number = next((target for ref, target in targets.items() if ref.name == name), max(candidates))
+ number = next((target for ref, target in targets.items() if ref.name == name), max(candidates, key=str))
# head-limit-of-one-less tests/server/transport/test_heads.py
< tests/server/transport/test_heads.py::test_a_head_as_large_as_the_limit_is_answered
- self._head_bytes += len(name) + len(value) + FIELD_OVERHEAD
- if self._head_bytes > self._max_bytes or self._fields > self._max_fields:
+ self._head_bytes += len(name) + len(value) + FIELD_OVERHEAD
+ if self._head_bytes >= self._max_bytes or self._fields > self._max_fields:
# lock-lost-by-a-cancelled-task tests/server/streams
< tests/server/streams/test_triton_sequences.py::test_one_that_is_cancelled_as_its_turn_comes_hands_it_on
- # The task was cancelled after the lock was granted and before it could run: pass the lock on.
- self._grant_next(key)
+ pass
# session-expires-at-work tests/server/streams
< tests/server/streams/test_triton_sequences.py::test_what_is_worked_on_does_not_expire
- if self.locks.is_held(key):
- self._touch(key, entry)
+ if False:
+     self._touch(key, entry)
# stream-begins-with-an-old-state tests/server/handlers
< tests/server/handlers/stream_connection/test_messages.py::test_a_stream_is_closed_and_begins_anew
- value[first:needed] = 0
+ pass
# line-break-opens-the-admin-path tests/server/test_auth.py
< tests/server/test_auth.py::test_what_a_path_needs
- (re.compile(r"/v2/repository/models/.*", re.DOTALL), "admin"),
+ (re.compile(r"/v2/repository/models/.*"), "admin"),
# origin-of-the-request-before tests/server/transport
< tests/server/transport/test_direct_exchange.py::test_each_request_of_a_connection_needs_its_token
- and fields.get(b"origin") == others.get(b"origin")
+ and fields.get(b"host") == others.get(b"host")
# sequence-start-keeps-the-state tests/server/streams
< tests/server/streams/test_triton_sequences.py::test_any_schedule_is_that_of_one_request_after_the_other
- if start:
- sequence = Sequence(model, rows, owner)
+ if start and entry is None:
+     sequence = Sequence(model, rows, owner)
# upper-bound-rounded-to-the-nearest tests/server/page/test_pasted_tables.py
< tests/server/page/test_pasted_tables.py::test_upper_bounds_are_rounded_up
- return number(value, digits, "ceil");
+ return number(value, digits);
# business-month-ends-after-the-month tests/server/page/test_pasted_tables.py
< tests/server/page/test_pasted_tables.py::test_the_page_counts_steps_as_the_server_does
- const beyond = weekday(edge) - (isEnd ? 4 : 7);
+ const beyond = weekday(edge) - 7;
# forgotten-cut-line tests/cli/commands/test_bridge.py
< tests/cli/commands/test_bridge.py::test_a_line_that_was_cut_ends_the_journal
- self._file.truncate(end)
+ pass
# model-changed-during-a-job tests/cli/commands/test_predict_folder.py
< tests/cli/commands/test_predict_folder.py::test_a_process_refuses_a_model_that_has_changed_since
- if target.digest != self.digest:
+ if target.digest is None:
# record-trusted-without-its-answers tests/cli/commands/test_predict_folder.py
< tests/cli/commands/test_predict_folder.py::test_changed_files_are_answered_again
- entry["input_sha256"] == _sha256(source) and entry["output_sha256"] == _sha256(self.output(source))
+ entry["input_sha256"] == _sha256(source)
# piece-ignores-the-times-of-others tests/cli/test_predict_in_pieces.py
< tests/cli/test_predict_in_pieces.py::test_series_on_unlike_grids_are_read_whole
- self.check.add_times(inputs)
+ pass
# figure-of-a-certificate-not-compared tests/cli/commands/registry_policy
< tests/cli/commands/registry_policy/test_recomputed_checks.py::test_a_certificate_that_is_false_in_a_figure_is_found
- if not _is_same(before, computed):
+ if key == "kind" and not _is_same(before, computed):
# retry-before-the-server-asks tests/client
< tests/client/test_client.py::test_an_attempt_that_the_deadline_would_cut_off_is_not_made
- seconds = random.uniform(0.5, 1.0) * self._backoff if requested is None else requested
+ seconds = random.uniform(0.5, 1.0) * self._backoff
# reply-of-an-abandoned-call tests/client/test_streams.py
< tests/client/test_streams.py::TestLinesThatBreak::test_the_reply_to_a_cancelled_step_is_not_that_to_the_next
- if self._connection is not None and self._connection.is_awaiting_reply:
+ if self._connection is not None and self._connection.is_awaiting_reply is None:
# kernel-counts-steps-before-the-first tests/native
< tests/native/test_server_engine.py::test_a_stream_has_the_bits_of_a_sequence_in_any_batch
- if (!missing || count[i] > 0) count[i] = count[i] + 1 < size ? count[i] + 1 : size;
+ count[i] = count[i] + 1 < size ? count[i] + 1 : size;
# thread-adds-to-the-wrong-rows tests/native/test_engine.py
< tests/native/test_engine.py::test_threads_change_no_bit
- part.sums += start * call.inputs * size
+ part.sums += start * call.inputs * 4
# better-within-the-spread tests/papers/test_statements.py
< tests/papers/test_statements.py::test_a_mean_is_better_by_more_than_the_spread
- return lead > spread, note
+ return lead > 0, note
# part-of-the-data-is-full tests/papers/test_results_page.py
< tests/papers/test_results_page.py::test_a_run_with_a_part_of_its_data_makes_a_table_partial
- and done["epochs"] in (None, 1.0) and not done["partial_data"]
+ and done["epochs"] in (None, 1.0)
"""


@dataclass
class Fault:
    """A planted fault.

    Attributes:
        name: Its name.
        tests: Folder or file of the tests of its subject.
        caught_by: The test that caught it when it was recorded; empty for none.
        old: Lines of the product, in any indentation.
        new: The lines that take their place.
    """

    name: str
    tests: str
    caught_by: str = ""
    old: list[str] = field(default_factory=list)
    new: list[str] = field(default_factory=list)

    @property
    def pattern(self) -> re.Pattern[str]:
        """Matches the old lines."""
        return re.compile(r"[ \t]*\n[ \t]*".join(re.escape(line.strip()) for line in self.old))

    def place(self, tree: Path) -> Path | str:
        """Return the file of the product with the old lines, or why there is none."""
        files = [
            path for name in PRODUCT for path in (tree / name).rglob("*.*") if path.suffix in (".py", ".c", ".h", ".js")
        ]
        places = [path for path in files for _ in self.pattern.finditer(path.read_text(encoding="utf-8"))]
        if len(places) == 1:
            return places[0]
        return f"its lines are there {len(places)} times {[str(path.relative_to(tree)) for path in places[:3]]}"


def read_faults() -> list[Fault]:
    """Return the planted faults."""
    faults: list[Fault] = []
    for line in FAULTS.strip().splitlines():
        mark, rest = line[:2], line[2:]
        if mark == "# ":
            name, tests = rest.split()
            faults.append(Fault(name, tests))
        elif mark == "< ":
            faults[-1].caught_by = rest
        else:
            (faults[-1].old if mark == "- " else faults[-1].new).append(rest)
    return faults


class Copy:
    """A copy of the working tree with an environment of its own.

    Args:
        tree: Folder of the copy.
        slow: Whether the slow tests run too.
    """

    def __init__(self, tree: Path, *, slow: bool) -> None:
        self.tree, self._bin = tree, tree / ".venv" / "bin"
        self._marks = [] if slow else ["-m", "not slow"]
        self._changes = 0
        for name in filter(None, _output(["git", "ls-files", "-coz", "--exclude-standard"]).split("\0")):
            # A file that was deleted and is not committed is still listed.
            if (ROOT / name).is_file():
                (tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, tree / name)
        has_native = self._install_kernels()
        packages = [path.parent for path in tree.glob("*/stablernn*/__init__.py")]
        packages = [tree / "stablernn", *(path for path in packages if has_native or path.name != "stablernn_native")]
        venv.create(tree / ".venv", symlinks=True)
        (library,) = (tree / ".venv" / "lib").glob("python*/site-packages")
        # The copy first, then all that this program can import.
        lines = [f"{path.parent}\n" for path in packages]
        lines += [f"import site; site.addsitedir({path!r})\n" for path in site.getsitepackages()]
        (library / "copy.pth").write_text("".join(lines))
        script = self._bin / "stablernn"
        script.write_text(f"#!{self._bin}/python\nimport sys\nfrom stablernn_cli.main import main\nsys.exit(main())\n")
        script.chmod(0o755)
        code = "import importlib, sys; [print(importlib.import_module(name).__file__) for name in sys.argv[1:]]"
        command = [f"{self._bin}/python", "-I", "-c", code, *(path.name for path in packages)]
        if strangers := [file for file in _output(command).splitlines() if not file.startswith(f"{tree}/")]:
            sys.exit(f"The environment of the copy imports other files: {', '.join(strangers)}.")

    def _install_kernels(self, *, build: bool = False) -> bool:
        """Install the kernels of ``native``, built or as this program has them; return False where it has none."""
        spec, source = find_spec("stablernn_native"), self.tree / "native"
        if spec is None or spec.origin is None:
            return False
        folder = Path(spec.origin).parent
        if build:
            folder = self.tree / "build" / "native"
            _output(["cmake", "-S", str(source), "-B", str(folder)])
            _output(["cmake", "--build", str(folder)])
        shutil.copy2(folder / "kernels.so", source / "stablernn_native")
        return True

    @contextmanager
    def planted(self, faults: Sequence[Fault]) -> Iterator[None]:
        """Apply faults, all of which have a place, in the ``with`` block."""
        originals: dict[Path, str] = {}
        for fault in faults:
            path = fault.place(self.tree)
            assert isinstance(path, Path), f"{fault.name}: {path}"
            content = path.read_text(encoding="utf-8")
            originals.setdefault(path, content)
            (match,) = fault.pattern.finditer(content)
            indentation = content[content.rfind("\n", 0, match.start()) + 1 : match.start()]
            new = f"\n{indentation}".join(fault.new)
            self._write(path, content[: match.start()] + new + content[match.end() :])
        is_compiled = any(path.suffix in (".c", ".h") for path in originals)
        try:
            if is_compiled:
                self._install_kernels(build=True)
            yield
        finally:
            for path, content in originals.items():
                self._write(path, content)
            if is_compiled:
                self._install_kernels()

    def _write(self, path: Path, content: str) -> None:
        path.write_text(content, encoding="utf-8")
        # Bytecode is told apart by whole seconds and the size: no two versions of a file may have the same.
        self._changes += 1
        os.utime(path, (1e9 + self._changes, 1e9 + self._changes))

    def failures(self, tests: Sequence[str], *, stop: bool = True) -> list[str]:
        """Return the tests that fail, the first one alone with ``stop``; ``(hangs)`` for a run that does not end."""
        shutil.rmtree(self.tree / ".pytest_cache", ignore_errors=True)
        command = [f"{self._bin}/python", "-m", "pytest", "-q", *(["-x"] if stop else []), *self._marks, *tests]
        environment = {"OMP_NUM_THREADS": "1", **os.environ, "PATH": f"{self._bin}:{os.environ['PATH']}"}
        with tempfile.TemporaryFile("w+") as log:
            process = subprocess.Popen(
                command, cwd=self.tree, env=environment, stdout=log, stderr=log, start_new_session=True
            )
            try:
                status = process.wait(MAX_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                return ["(hangs)"]
            last_failed = self.tree / ".pytest_cache" / "v" / "cache" / "lastfailed"
            # 4 and 5: the test is not there any more, or nothing is selected.
            if status not in (0, 4, 5) and not last_failed.exists():
                log.seek(0)
                sys.exit(f"pytest ended with {status}:\n{log.read()[-3000:]}")
        return [] if status in (0, 4, 5) else list(json.loads(last_failed.read_text()))


def _output(command: Sequence[str]) -> str:
    """Return what a command prints."""
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def find_test(test: str, tree: Path) -> str:
    """Return a test that may have moved to another file; empty if it is nowhere."""
    file, _, name = test.partition("::")
    text = f"def {name.rpartition('::')[2]}("
    for path in (tree / file, *sorted((tree / "tests").rglob("test_*.py"))):
        if path.is_file() and text in path.read_text(encoding="utf-8"):
            return f"{path.relative_to(tree)}::{name}"
    return ""


def catch(copy: Copy, fault: Fault) -> str:
    """Return the test that catches a fault, empty if none of its folder does."""
    recorded = find_test(fault.caught_by, copy.tree) if fault.caught_by else ""
    with copy.planted([fault]):
        if recorded and copy.failures([recorded]):
            return recorded
    folder = next(path for path in [Path(fault.tests), *Path(fault.tests).parents] if (copy.tree / path).exists())
    broken: list[str] = []
    while True:
        with copy.planted([fault]):
            failures = copy.failures([str(folder), *(f"--deselect={test}" for test in broken)])
        if not failures or failures == ["(hangs)"] or not copy.failures(failures):
            return "".join(failures)
        print(f"    {failures[0]} fails without the fault too", flush=True)
        broken += failures


def catch_together(copy: Copy, faults: Sequence[Fault]) -> dict[str, str]:
    """Return the tests that catch faults, by name, after one run of the whole suite with all of them."""
    with copy.planted(faults):
        failures = copy.failures(["tests"], stop=False)
    broken = copy.failures(failures, stop=False) if failures else []
    suspects = [test for test in failures if test not in broken]
    caught = {}
    for fault in faults if suspects else []:
        with copy.planted([fault]):
            caught[fault.name] = "".join(copy.failures(suspects))
    return caught


def record(caught: dict[str, str]) -> None:
    """Write the tests that catch faults, by name, into this file."""
    lines, name = [], ""
    for line in Path(__file__).read_text(encoding="utf-8").splitlines():
        if line.startswith("< ") and name in caught:
            continue
        lines.append(line)
        if line.startswith("# ") and len(line.split()) == 3:
            name = line.split()[1]
            if caught.get(name):
                # Of all parameters, since the one that fails may have another name tomorrow.
                lines.append(f"< {caught[name].partition('[')[0]}")
    Path(__file__).write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option, action in {"folder": "store", "name": "append"}.items():
        parser.add_argument(f"--{option}", action=action)
    for option in ("places", "slow", "all-tests", "record"):
        parser.add_argument(f"--{option}", action="store_true")
    options = parser.parse_args()
    faults = [fault for fault in read_faults() if not options.name or fault.name in options.name]
    if options.folder:
        faults = [fault for fault in faults if Path(fault.tests).is_relative_to(options.folder)]
    homeless = {fault.name: place for fault in faults if isinstance(place := fault.place(ROOT), str)}
    for name, reason in homeless.items():
        print(f"no place  {name}: {reason}")
    faults = [fault for fault in faults if fault.name not in homeless]
    if options.places:
        print(f"{len(faults)} have a place, {len(homeless)} have none.")
        return bool(homeless)
    caught: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="mutations-") as folder:
        copy = Copy(Path(folder).resolve(), slow=options.slow)
        for fault in faults:
            began = time.monotonic()
            caught[fault.name] = catch(copy, fault)
            outcome = "caught  " if caught[fault.name] else "survived"
            print(f"{outcome}  {fault.name}  {time.monotonic() - began:.0f} s  {caught[fault.name]}", flush=True)
        survivors = [fault for fault in faults if not caught[fault.name]]
        if options.all_tests and survivors:
            caught |= (later := catch_together(copy, survivors))
            for name, test in later.items():
                print(f"{'caught  ' if test else 'survived'}  {name}  by all tests  {test}", flush=True)
    if options.record:
        record(caught)
    usage, count = resource.getrusage(resource.RUSAGE_CHILDREN), sum(map(bool, caught.values()))
    seconds = usage.ru_utime + usage.ru_stime
    print(f"{count} of {len(caught)} caught, {len(homeless)} without a place, {seconds:.0f} s of processor time.")
    return count < len(caught) or bool(homeless)


if __name__ == "__main__":
    sys.exit(main())
