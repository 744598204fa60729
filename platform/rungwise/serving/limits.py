"""How much one request to a server may ask for, so that it holds others up for seconds at most."""

from rungwise.core.errors import DataError

# Texts of a letter cost no less than a sentence.
MOST_EXAMPLES = 1000
MOST_BYTES = 1 << 20
MOST_NEW = 10_000  # tokens


class RequestTooLarge(DataError):
    pass


def check_work(examples: int, length: int) -> None:
    """Check a request for answers to `examples`, each with `length` new tokens."""
    check_size(examples, MOST_EXAMPLES, "examples")
    check_size(examples * length, MOST_NEW, "new tokens")


def check_size(size: int, most: int, unit: str) -> None:
    if size > most:
        raise RequestTooLarge(
            f"expected at most {most:,} {unit}, found {size:,}; send several requests"
        )
