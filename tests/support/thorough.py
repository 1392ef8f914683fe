"""Which tests run in `make test-all` only, and why: `make test` keeps one of every behaviour and takes twenty minutes.

A test is named by its path below tests/: `LAYER/FILE.py` or `LAYER/FILE.py::TEST`.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Final

TESTS: Final[dict[str, tuple[str, ...]]] = {  # why -> tests
    "what `make lint` compares too": (
        "unit/test_docs_generated.py::test_tables_and_remedies_are_those_of_the_code",
    ),
    "statistics of thousands of simulated rollouts": (
        "unit/test_analysis_rates.py::test_rollouts_fail_as_often_as_the_page_says",
    ),
    "clients of all kinds at once, or a thousand that mean harm: minutes of load, of which each part is in its own file": (
        "integration/test_server_floods.py",
        "integration/test_server_mixture.py",
        "integration/test_server_tls_floods.py",
    ),
    "an emulated processor, or many models in one run: minutes of CPU time, of which a smaller case is in the same file": (
        "integration/test_precision_quantized.py::test_every_form_holds_without_vnni",
        "integration/test_processors.py::test_int8_that_was_proved_here_serves_without_vnni",
        "integration/test_processors.py::test_openvino_saturates_alike_and_is_right_with_weights_of_7_bits",
    ),
    "a model that runs for more than a second each time: 20 s of CPU time": (
        "integration/test_stage_costs.py::test_a_model_that_cannot_be_profiled_is_prepared_all_the_same",
    ),
    "what preflight says, built by hand too: builds that `integration/test_tensorrt_builder.py` has": (
        "integration/test_preflight_real_builds.py",
    ),
    "tools of developers, of CI and of other systems, which a change of the product rarely concerns": (
        "integration/test_backends_session.py::test_owners_of_modules_are_found_as_python_does",
        "integration/test_bench_verdicts.py",
        "integration/test_budgets.py",
        "integration/test_gpu_proof.py",
        "integration/test_locales.py",
        "integration/test_preflight_ci.py",
        "integration/test_programs_in_strings.py",
        "integration/test_sidecar_benchmark.py",
        "integration/test_systems.py",
    ),
    "examples of the documents that take a model through all stages; others of the page are in the same file": (
        "integration/test_docs_examples.py::test_the_configuration",
        "integration/test_docs_processing.py::test_an_image",
    ),
    "real models and large ones, of which a made one is in the same file": (
        "integration/test_processors.py::test_stage_quantize_knows_the_processor_that_it_runs_on",
        "integration/test_rounding_measuring.py::test_errors_of_halves_are_those_of_a_converted_model",
        "integration/test_rounding_measuring.py::test_errors_of_int8_are_those_of_a_calibrated_model",
        "integration/test_server_concurrency.py::test_concurrency_of_a_real_model_is_consistent",
        "integration/test_server_concurrency.py::test_many_clients_of_a_real_model_get_the_answers_that_it_gives_alone",
        "integration/test_server_run_errors.py::test_a_clash_is_the_clients_fault_on_openvino",
        "integration/test_sidecar_memory.py::test_a_large_output_is_proven_within_the_limit",
        "integration/test_stage_batch.py::test_a_hungry_model_gets_smaller_batches",
        "integration/test_stage_batch.py::test_large_inputs_get_smaller_batches_though_runs_are_cheap",
        "integration/test_stage_real_models.py::test_known_architectures_are_prepared_as_they_are",
        "integration/test_stage_signature.py::test_a_server_reports_the_signature",
        "integration/test_stage_signature.py::test_too_many_tensors_are_reported_by_digest",
    ),
    "builds a program in Go: minutes": ("integration/test_server_grpc_go.py",),
    "downloads packages: minutes": (
        "integration/test_installing.py",
        "integration/test_nvidia_libraries.py",
        "integration/test_tensorrt_maven.py",
        "integration/test_tensorrt_parser.py",
    ),
    "a minute of faults at random, of which each is in the same file": (
        "apiserver/test_faults.py::test_random_faults_end_and_nothing_is_lost",
    ),
    "what an API server with played Jobs and pods decides as well, in `tests/apiserver`": (
        "e2e/test_capacity.py",
        "e2e/test_fleet.py",
        "e2e/test_refusals.py",
        "e2e/test_replicas.py",
        "e2e/test_rollout.py::test_the_operator_is_killed_three_times_during_a_rollout",
        "e2e/test_rollout.py::test_with_one_device_every_strategy_goes_through_or_says_what_is_missing",
        "e2e/test_serving.py::test_a_second_apply_and_a_restart_write_nothing",
    ),
    "what the stages, the server and the sidecar do as processes too, in `tests/integration`": (
        "e2e/test_fallback.py",
        "e2e/test_pipeline.py",
        "e2e/test_serving.py::test_declared_shapes_on_the_cpu_backend_with_tritons_client",
        "e2e/test_serving.py::test_tls_and_tokens_by_secret",
        "e2e/test_store_bucket.py",
    ),
    "further cases of what another test of the file shows on a cluster": (
        "e2e/test_alerts.py::test_a_collection_removes_only_unused_artefacts",
        "e2e/test_alerts.py::test_a_mended_model_ends_the_alert",
        "e2e/test_alerts.py::test_a_model_that_never_starts_is_one_alert_that_names_the_cause",
        "e2e/test_alerts.py::test_a_refused_model_is_an_alert_with_its_reason",
        "e2e/test_alerts.py::test_a_session_that_falls_back_while_serving_alerts_within_seconds",
        "e2e/test_alerts.py::test_every_query_of_the_dashboards_returns_data",
        "e2e/test_engines.py::test_a_deleted_engine_comes_from_the_store_if_it_is_whole_there",
        "e2e/test_engines.py::test_a_node_that_gets_the_labels_of_a_class_gets_its_pods_and_nothing_is_built",
        "e2e/test_engines.py::test_nodes_outside_the_engine_are_judged_by_the_policy",
        "e2e/test_engines.py::test_ten_models_of_one_key_are_built_once",
        "e2e/test_engines.py::test_damaged_artefacts_are_refused_and_made_again_while_others_serve",
        "e2e/test_engines.py::test_models_applied_again_build_only_the_engine_of_a_new_class",
        "e2e/test_engines.py::test_an_interim_goes_on_serving_if_the_engine_cannot",
        "e2e/test_rollout.py::test_an_update_under_requests",
    ),
    "processes and nodes end: minutes each; the operator's end is in `tests/apiserver` too": (
        "e2e/test_faults.py::test_a_file_that_was_overwritten_is_served_only_when_asked_for",
        "e2e/test_faults.py::test_a_jobs_pod_is_deleted",
        "e2e/test_faults.py::test_a_lost_artefact_is_prepared_again",
        "e2e/test_faults.py::test_a_node_agent_is_killed",
        "e2e/test_faults.py::test_a_node_is_lost_with_the_pod_of_a_job",
        "e2e/test_faults.py::test_a_server_killed_for_memory_names_its_limit",
        "e2e/test_faults.py::test_a_server_that_has_lost_its_device_is_restarted",
        "e2e/test_faults.py::test_the_operator_is_killed_while_a_stage_runs",
    ),
    "further ways to run preflight and plan, whose stages and verdicts the other tests of the command line run": (
        "integration/test_cli_plan.py::test_a_namespace_that_yaml_takes_for_a_number_is_refused",
        "integration/test_cli_plan.py::test_classes_of_the_manifest_take_the_place_of_the_assumed_one",
        "integration/test_cli_plan.py::test_other_ways_not_to_come_to_a_plan",
        "integration/test_cli_plan.py::test_saved_facts_are_planned_on_again",
        "integration/test_preflight.py::test_a_shape_that_is_missing_is_refused_for_an_engine_alone",
        "integration/test_preflight_cache.py",
        "integration/test_preflight_check.py::test_a_job_without_memory_runs_again_alone",
        "integration/test_preflight_faults.py",
        "integration/test_preflight_many.py::test_a_model_that_cannot_be_looked_at_stops_no_other",
        "integration/test_preflight_outputs.py",
        "integration/test_preflight_parallel.py",
        "integration/test_preflight_processing.py",
    ),
    "a real autoscaler needs minutes to see and act; a played one is in `tests/apiserver`": (
        "e2e/test_autoscaling.py",
    ),
    "the local cluster itself, which every run of `tests/e2e` starts, uses and removes": (
        "cluster/test_lifecycle.py",
    ),
}

# of those tests, and of the cases of SPREAD, what `make test` runs nevertheless
KEPT: Final = frozenset(
    {
        "apiserver/test_faults.py::test_faults_end_and_nothing_is_lost[rights revoked]",
        "e2e/test_rollout.py::test_an_update_under_requests[drifts]",
        "e2e/test_rollout.py::test_an_update_under_requests[is good, Surge]",
        "integration/test_preflight_faults.py::test_a_full_disk",
        "integration/test_preflight_faults.py::test_a_job_that_does_not_end_is_ended",
        "integration/test_preflight_outputs.py::test_junit_of_a_real_run",
        "integration/test_rounding_measuring.py::test_errors_of_halves_are_those_of_a_converted_model[swift_f0/model.onnx-FP16-False]",
        "integration/test_rounding_measuring.py::test_errors_of_int8_are_those_of_a_calibrated_model[ch_ppocr_mobile_v2.0_cls_infer.onnx]",
        "integration/test_server_floods.py::test_the_server_answers_probes_and_clients_beside[storm]",
        "integration/test_server_floods.py::test_the_sidecar_answers_probes_and_scrapes_beside[refused]",
        "integration/test_server_tls_floods.py::test_a_handshake_that_takes_too_long_is_ended",
        "integration/test_server_tls_floods.py::test_the_oldest_handshakes_end_for_new_ones",
        "integration/test_stage_batch.py::test_a_hungry_model_gets_smaller_batches[converted]",
    }
)

# tests of which `make test` runs one case of four, as far apart as possible: the cases differ in what they are given,
# and find the same faults
SPREAD: Final = (
    "apiserver/test_faults.py::test_faults_end_and_nothing_is_lost",
    "apiserver/test_operator_stops.py::test_wherever_it_is_stopped_a_rollout_ends_as_if_it_had_not_been",
    "integration/test_adversary.py::test_every_lie_costs_readiness_or_fires_an_alert",
    "integration/test_cli_plan.py::test_a_manifest_that_is_none_is_reported",
    "integration/test_discovery_models.py::test_an_address_alone_serves_a_model_with_open_sizes",
    "integration/test_discovery_models.py::test_every_corner_runs_in_another_session_and_the_sizes_are_the_models",
    "integration/test_discovery_models.py::test_proposed_shapes_work_when_pasted",
    "integration/test_extensions.py::test_validate_refuses",
    "integration/test_node_cache.py::test_a_cache_in_trouble_costs_only_time",
    "integration/test_parity_drift.py::test_one_node_was_tampered_with",
    "integration/test_parity_varying.py::test_the_source_agrees_with_itself",
    "integration/test_parity_varying.py::test_other_noise_is_refused",
    "integration/test_precision_halves.py::test_real_models_keep_their_rules",
    "integration/test_precision_quantized.py::test_every_form_keeps_the_outputs",
    "integration/test_precision_quantized.py::test_tensorrt_builds_it",
    "integration/test_preflight_html.py::test_hostile_names_are_shown_and_do_nothing",
    "integration/test_rules_real_models.py::test_findings_are_known_and_true",
    "integration/test_server_compression.py::test_a_bomb_is_refused_and_takes_no_memory",
    "integration/test_server_compression.py::test_a_compressed_request_is_answered_like_any_other",
    "integration/test_server_compression.py::test_large_requests_are_expanded_beside_others",
    "integration/test_server_compression.py::test_tritons_client_compresses_in_both_directions",
    "integration/test_sidecar_shadow.py::test_clients_notice_no_fault_of_a_canary",
    "integration/test_sources_objects.py::test_a_file_or_a_folder_with_one_model",
    "integration/test_stage_costs.py::test_labels_match_the_serving_session",
    "integration/test_stage_real_models.py::test_from_source_to_artifact",
    "integration/test_store_bucket.py::test_a_damaged_artefact_is_refused_and_published_again",
    "integration/test_tensorrt_builder.py::test_real_models",
    "integration/test_tensorrt_precisions.py::test_precisions",
    "unit/test_cli_plan_truth.py::test_predictions_come_true",
    "unit/test_pipeline_digest.py::test_all_code_does",
    "unit/test_plan_cluster_faults.py::test_old_and_foreign_restarts_of_ready_pods_change_nothing",
    "unit/test_plan_cluster_faults.py::test_pods_that_get_a_node_late_are_not_given_up",
    "unit/test_parity_fills.py::test_rounded_masks_and_scores_agree",
    "unit/test_parity_fills.py::test_values_of_another_model_where_nothing_is_masked_fail",
    "unit/test_plan_property.py::test_whatever_happens",
    "unit/test_plan_writes.py::test_wherever_it_is_killed_a_rollout_ends_as_if_it_had_not_been",
    "unit/test_sidecar_latency.py::test_ten_minutes_at_any_load_are_no_alarm_and_a_threefold_slow_down_is_within_one",
)
_EACH: Final = 4

_WHY: Final = {test: why for why, tests in TESTS.items() for test in tests}
_CASE: Final = "a further case, which finds the same faults"


def find_left_out(nodeids: Sequence[str]) -> dict[str, str]:
    """Return why `make test` leaves tests out, by the names that pytest gives them; what is not in it, it runs."""
    reasons: dict[str, str] = {}
    counts: Counter[str] = Counter()
    for nodeid in nodeids:
        case = nodeid.removeprefix("tests/").partition("@")[0]  # @: a group of pytest-xdist
        test = case.partition("[")[0]
        if case in KEPT or test in KEPT:
            continue
        if test in SPREAD:
            counts[test] += 1
            if counts[test] % _EACH != 1:
                reasons[nodeid] = _CASE
        elif why := _WHY.get(test) or _WHY.get(test.partition("::")[0]):
            reasons[nodeid] = why
    return reasons
