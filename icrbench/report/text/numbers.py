"""How a number is written: one rounding for every output."""

from icrbench.report import stats

MISSING = "—"  # what was not run, or no record says


def tenths(value: float) -> float:
    """Turn a fraction into per cent, or a difference into points, rounded as printed; never minus zero."""
    return round(100 * value, 1) + 0.0


def signed(value: float) -> str:
    """Write a difference in points with its sign: "+4.4"."""
    rounded = tenths(value)
    return f"{'−' if rounded < 0 else '+'}{abs(rounded):.1f}"


def signed_interval(interval: stats.Interval) -> str:
    """Write the interval of a difference in points: "[+2.5, +6.3]"."""
    return f"[{signed(interval.low)}, {signed(interval.high)}]"


def probability(p: float) -> str:
    """Write a p-value to three places: "0.014", "<0.001"."""
    return f"{p:.3f}" if p >= 0.001 else "<0.001"
