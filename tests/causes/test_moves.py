"""What one symptom, or one result of an experiment, does to the ranking of two neighbours."""

import pytest

from tests.causes.test_contract import result
from tests.causes.test_tables import shares, told, typical

DATA = ("data_batch", "repeated_text", "data_mix_change", "data_order")


@pytest.mark.parametrize(
    ("experiment", "outcome", "rises", "falls"),
    [
        # PaLM's control: the same batches on an older clean state.
        ("earlier_state", "stays_away", "edge_of_stability", "data_batch"),
        ("earlier_state", "comes_back", "data_batch", "edge_of_stability"),
        ("other_batch", "comes_back", "optimizer_state_corrupt", "data_batch"),
        ("other_batch", "stays_away", "data_batch", "weight_corruption"),
        ("replay", "stays_away", "weight_corruption", "data_batch"),
        ("replay", "comes_back", "data_batch", "optimizer_state_corrupt"),
        ("left_out", "comes_back", "lr_too_high", "data_batch"),
        ("left_out", "stays_away", "data_batch", "fp16_forward_overflow"),
        ("reseeded", "stays_away", "edge_of_stability", "fp16_forward_overflow"),
        ("reseeded", "stays_away", "data_order", "data_mix_change"),
        ("bisection", "few_samples", "repeated_text", "data_mix_change"),
        ("bisection", "many_samples", "data_mix_change", "repeated_text"),
        ("bisection", "none_needed", "lr_too_high", "data_batch"),
        ("fp32_forward", "cured", "fp16_gradient_overflow", "loss_precision"),
        ("fp32_forward", "not_cured", "data_batch", "low_precision_numerics"),
        ("fp64_attention", "cured", "low_precision_numerics", "data_batch"),
        ("fp64_loss", "cured", "loss_precision", "stale_second_moment"),
        ("lower_rate", "cured", "lr_too_high", "output_logit_drift"),
        ("lower_rate", "not_cured", "masking_or_labels", "warmup_too_short"),
        ("fresh_moments", "cured", "optimizer_state_corrupt", "optimizer_state_lost"),
        ("fresh_moments", "not_cured", "update_norm_growth", "stale_second_moment"),
        ("repaired_moments", "cured", "optimizer_state_lost", "schedule_lost"),
        ("other_split", "differs", "loss_normalisation", "data_batch"),
        ("other_split", "differs", "reduction_precision", "output_logit_drift"),
        ("twice", "differs", "changed_environment", "data_batch"),
        ("eager", "differs", "changed_environment", "resume_mismatch"),
        ("inspection", "moments_damaged", "optimizer_state_corrupt", "weight_corruption"),
        ("inspection", "weights_damaged", "weight_corruption", "optimizer_state_corrupt"),
        ("inspection", "sound", "stale_second_moment", "optimizer_state_corrupt"),
    ],
)
def test_a_result_moves_the_ranking_the_right_way(
    experiment: str, outcome: str, rises: str, falls: str
) -> None:
    degrees = {"loss_moved": 1.0, "gradient_moved": 1.0}
    before = shares(told(degrees))
    after = shares(told(degrees, [result(experiment, outcome)]))
    # Against each other: a third cause may gain by the same result.
    assert after[rises] / after[falls] > 1.5 * before[rises] / before[falls]


@pytest.mark.parametrize(
    ("symptom", "degree", "rises", "falls"),
    [
        ("attention_logit_grew_first", 1, "attention_logit_growth", "update_norm_growth"),
        ("log_z_grew", 1, "output_logit_drift", "reduction_precision"),
        ("rms_t_rose", 1, "stale_second_moment", "update_norm_growth"),
        ("rms_t_rose", 0, "update_norm_growth", "stale_second_moment"),
        ("first_moment_grew", 1, "update_norm_growth", "stale_second_moment"),
        ("gradient_near_epsilon", 1, "tiny_gradients_vs_epsilon", "update_norm_growth"),
        ("embedding_gradient_dominates", 1, "embedding_gradient", "stale_second_moment"),
        ("update_moved_first", 1, "optimizer_state_corrupt", "data_batch"),
        ("loss_moved_first", 1, "data_batch", "optimizer_state_corrupt"),
        ("samples_differ", 0, "edge_of_stability", "data_batch"),
        ("samples_repeat", 1, "repeated_text", "data_batch"),
        ("new_source", 1, "data_mix_change", "repeated_text"),
        ("samples_seen_before", 1, "data_order", "data_batch"),
        ("loss_dropped", 1, "data_order", "data_mix_change"),
        ("runs_in_fp16", 1, "fp16_forward_overflow", "numeric_overflow"),
        ("runs_in_fp16", 0, "numeric_overflow", "fp16_gradient_overflow"),
        ("born_in_forward", 1, "fp16_forward_overflow", "fp16_gradient_overflow"),
        ("scale_fell_with_finite_loss", 1, "fp16_gradient_overflow", "fp16_forward_overflow"),
        ("updates_lost_to_rounding", 1, "low_precision_numerics", "reduction_precision"),
        ("loss_near_zero", 1, "loss_precision", "stale_second_moment"),
        ("recurs_periodically", 1, "loss_precision", "stale_second_moment"),
        ("after_start", 1, "optimizer_state_lost", "optimizer_state_corrupt"),
        ("after_start", 0, "optimizer_state_corrupt", "optimizer_state_lost"),
        ("after_start", 1, "schedule_lost", "lr_too_high"),
        ("update_like_fresh", 1, "optimizer_state_lost", "schedule_lost"),
        ("rate_off_schedule", 1, "schedule_lost", "optimizer_state_lost"),
        ("rate_jumped", 1, "lr_too_high", "warmup_too_short"),
        ("rate_rising", 1, "warmup_too_short", "lr_too_high"),
        ("gradient_grew_before", 1, "lr_too_high", "optimizer_state_corrupt"),
        ("weight_jumped", 1, "weight_corruption", "optimizer_state_corrupt"),
        ("labels_masked", 1, "masking_or_labels", "logging_artefact"),
        ("constant_factor", 1, "loss_normalisation", "masking_or_labels"),
        ("only_the_metric", 1, "logging_artefact", "loss_normalisation"),
        ("replicas_differ", 1, "rank_desync", "reduction_precision"),
        ("reduces_in_low_precision", 0, "rank_desync", "reduction_precision"),
        ("configuration_changed", 1, "resume_mismatch", "changed_environment"),
        ("packages_changed", 1, "changed_environment", "optimizer_state_lost"),
        ("environment_changed", 1, "changed_environment", "schedule_lost"),
        ("brief", 1, "benign", "loss_normalisation"),
        ("lasting", 1, "lr_too_high", "benign"),
        ("probe_found_harm", 1, "weight_corruption", "benign"),
        ("nonfinite", 1, "numeric_overflow", "benign"),
        ("skipping_did_not_help", 1, "update_norm_growth", "data_batch"),
        ("fresh_moments_did_not_help", 1, "attention_logit_growth", "optimizer_state_corrupt"),
        ("setting_data_aside_did_not_help", 1, "data_mix_change", "data_batch"),
        ("rollback_did_not_help", 1, "lr_too_high", "weight_corruption"),
        ("lower_rate_did_not_help", 1, "output_logit_drift", "lr_too_high"),
    ],
)
def test_a_symptom_moves_the_ranking_the_right_way(
    symptom: str, degree: float, rises: str, falls: str
) -> None:
    before, after = shares(told({})), shares(told({symptom: degree}))
    assert after[rises] / after[falls] > 1.3 * before[rises] / before[falls]


def test_palms_control_overturns_a_batch_that_looked_guilty() -> None:
    degrees = typical("data_batch") | {"samples_differ": 0.5, "few_samples_carry_the_loss": 0.0}
    before = told(degrees)
    assert before.top.cause == "data_batch"
    results = [result("earlier_state", "stays_away"), result("other_batch", "comes_back")]
    after = told(degrees, results)
    assert after.top.cause != "data_batch"
    assert shares(after)["data_batch"] < 0.1
    blamed = [sum(shares(one)[name] for name in DATA) for one in (before, after)]
    assert blamed[1] < blamed[0] / 2
    assert after.data_suspicion < before.data_suspicion
