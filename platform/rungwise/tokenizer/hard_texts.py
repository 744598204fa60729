"""Texts that are hard to tokenise, to verify encoders and for tests."""

# ruff: noqa: RUF001
import random

import pyarrow as pa

# Blanks are repeated, so that they occur often.
FRAGMENTS = tuple(
    [" "] * 12
    + ["  ", "   ", "\n", "\n\n", "\r\n", "\t", " \n", "\n ", "\t ", "\x0b", "\x0c", "\x1c", "\x1f"]
    + ["\u00a0", "\u2003", "\u2000", "\u3000", "\u1680", "\u2028", "\u2029", "\u0085", "\u202f"]
    + ["\x00", "\x07", "\x1b", "\x7f", "\x9d", "\ufffd", "\u00ad", "\u200b", "\u200d", "\ufeff"]
    + ["\u0301", "\u0308", "\u0338", "\u0323", "\u20dd", "\ufe0f", "\u0307", " \u0301", "=\u0338"]
    + ["a\u0338", ">\u0338", "e\u0301", "E\u0301", "I\u0307", "中\u0338", "中\u0301"]
    + ["\u1100\u1161", "´", "`", "¨", "^", "ª", "²", "½", "ﬁ", "Å", "\u212b", "\u212a", "\u037e"]
    + ["\u1fef", "ΟΔΟΣ", "Σ", "ς", "İ", "ı", "ß", "ẞ", "ǅ", "Straße", "naïve", "CAFÉ", "Ω"]
    + ["🎉", "👩\u200d👩\u200d👧", "🇩🇪", "1️⃣", "💩", "\U0001d400", "\U000e0001", "\ue000", "\uf8ff"]
    + ["\U0010ffff", "私", "中文", "一", "鿿", "\u3400", "\U00020000", "豈", "、", "。", "，", "《"]
    + ["한국어", "ひら", "が", "שלום", "العربية", "हिन्दी", "ไทย", "Привет", "\u0e33", "\u0600"]
    + ["[MASK]", "[UNK]", "[CLS]", "[SEP]", "[PAD]", "[mask]", "<|endoftext|>", "<unk>", "<s>"]
    + ["##ing", "##", "\u2581", "\u2581a", " \u2581", "Ġ", "Ġthe", "Ċ", "</w>", "[MASK", "MASK]"]
    + ["'s", "'S", "'t", "'re", "'", "''", "'ll", "don't", "DON'T", "'1", "\u2019s", "'\u0301s"]
    + list('!"#$%&()*+,-./:;<=>?@[\\]^_`{|}~')
    + ["...", "--", "1,234.5", "3rd", "a1b2", "x_y", "e.g.", "http://a.b/c?d=e", "(word)", "$3"]
    + ["the", "The", "THE", "playing", "play", "berries", "unwanted", "a", "I", "word " * 3]
    + ["ab" * 40, "z" * 99, "z" * 100, "z" * 101, "z" * 130, "x" * 300, "，" * 90, "中" * 60]
    + ["\u4dc0\u4dff", "a\u4dc0b"]
)


def hard_texts(seed: int, number: int) -> pa.StringArray:
    """Return texts of random fragments in a row; some are empty."""
    rng = random.Random(seed)
    texts = [
        "".join(rng.choices(FRAGMENTS, k=rng.choice((0, 1, 2, 3, 5, 8, 13)))) for _ in range(number)
    ]
    return pa.array(texts, pa.string())
