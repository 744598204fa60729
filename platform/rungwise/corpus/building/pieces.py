"""Pieces: what a range is read by, and what corpora of a root need not read again.

A piece is a whole file, or the part of one that is its range. Its key is a digest of its bytes and
of all settings that reading depends on, so that a corpus that grows reads what is new.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from rungwise.core.configuration.canonical import fingerprint
from rungwise.corpus.building.range_builder import Piece, Range
from rungwise.corpus.config import CorpusConfig, PydocsSource, identity, source_key, source_names
from rungwise.corpus.files import hash_files
from rungwise.corpus.readers import pydocs
from rungwise.corpus.summary import CORPUS

KEY_CHARACTERS = 32
# What is decided after reading.
_LATER = (
    *("sources", "shard_megabytes", "deduplicate", "duplicate_paragraphs", "overlap"),
    "skip_limit",
)


def name_pieces(
    ranges: Sequence[Range], config: CorpusConfig, tests: str, results: Mapping[str, str]
) -> list[Range]:
    """Return the ranges with their pieces. `tests` is a digest of the test texts, `results` maps
    keys of pieces to those of the results that hold them."""
    plain = identity(config)
    rules = {name: value for name, value in plain.items() if name not in _LATER}
    names = source_names(config.sources)
    numbered_ranges: list[Range] = []
    for index, source in enumerate(config.sources):
        own = [range for range in ranges if range.source == index]
        files = list(dict.fromkeys(file for range in own for file in range.files))
        whole = isinstance(source, PydocsSource)
        if isinstance(source, PydocsSource):
            key = source_key(index, "packages")
            digests = [fingerprint(pydocs.package_versions(source.packages, key))] * len(files)
        else:
            digests = hash_files(files, source_key(index, "paths"))
        of_file = dict(zip(files, digests, strict=True))
        described = [CORPUS.version, rules, tests, index, names[index], plain["sources"][index]]
        settings = fingerprint(described, KEY_CHARACTERS)
        for range in own:
            pieces = []
            for part in [range.files] if whole else [(file,) for file in range.files]:
                content = [[file.name, file.size_bytes, of_file[file]] for file in part]
                facts = [settings, content, range.begin, range.end]
                key = fingerprint(facts, KEY_CHARACTERS)
                pieces.append(Piece(key, part, results.get(key, "")))
            numbered_ranges.append(replace(range, pieces=tuple(pieces)))
    return numbered_ranges
