"""How long Hypothesis searches: `HYPOTHESIS_PROFILE=thorough` searches longer, with other examples each time."""

from hypothesis import HealthCheck, settings

SLOW = [
    HealthCheck.too_slow,
    HealthCheck.data_too_large,
    HealthCheck.filter_too_much,
    HealthCheck.large_base_example,
]
BRIEF = settings(
    derandomize=True,
    max_examples=80,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=SLOW,
    print_blob=True,
)
PROFILES = {
    "brief": BRIEF,
    "thorough": settings(BRIEF, derandomize=False, max_examples=3000, stateful_step_count=80),
}
