"""How people read the value of a metric: alike on the page, in plots and on the terminal."""

CORRELATIONS = ("matthews", "pearson", "weighted_pearson", "spearman", "correlation")
# Decimal digits of metrics that are no shares.
OWN_UNITS = {
    "mean_squared_error": 3,
    "loss": 3,
    "bits_per_byte": 3,
    "perplexity": 1,
    "log_rank": 2,
    "tokens_per_second": 0,
}


def format_metric(value: float, metric: str) -> str:
    """A share as `78.2%`, a correlation times 100 as `52.1`, a loss as `0.412`."""
    if metric in OWN_UNITS:
        return f"{value:,.{OWN_UNITS[metric]}f}"
    return f"{100 * value:.1f}" + "%" * (metric not in CORRELATIONS)
