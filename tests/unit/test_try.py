"""`rungwise try`: what a model makes of a typed text, as transformers has it of the export."""

import io
import re
from pathlib import Path

import pytest
import torch
import transformers

from rungwise.__main__ import main
from rungwise.commands.models.export import write_pretrained
from rungwise.core.storage.folder import Folder
from tests.conftest import made_up_sentences
from tests.report_pages import built

SHARE = re.compile(r"(\S+) (\d+\.\d)%")


def words() -> list[str]:
    return made_up_sentences(1, 1)[0].split()


@pytest.mark.parametrize("objective", ["mlm", "bidirectional"])
def test_a_gap_is_filled_from_both_sides(
    objective: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = built(objective, tmp_path / "root")
    folder = made["pretrain"].folder.uri
    first, *_, last = words()
    assert main(["try", folder, f"{first} ___ {last}"]) == 0
    line = capsys.readouterr().out
    shares = SHARE.findall(line)
    assert len(shares) == 5
    assert line.count("\n") == 1
    if objective == "mlm":
        write_pretrained(made["pretrain"], Folder.at(tmp_path / "out"))
        model = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "out").eval()
        tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
        row = tokenizer(f"{first} {tokenizer.mask_token} {last}", return_tensors="pt")
        place = row["input_ids"][0].tolist().index(tokenizer.mask_token_id)
        with torch.no_grad():
            best = model(**row).logits[0, place].softmax(dim=-1).topk(5)
        assert [share for _, share in shares] == [f"{100 * p:.1f}" for p in best.values.tolist()]
        assert shares[0][0] == tokenizer.decode(best.indices[:1]).strip()
    else:
        others = " ".join(words()[1:4])
        assert main(["try", folder, f"{first} ___ {others}"]) == 0
        assert capsys.readouterr().out != line, "what follows the gap is read"
    assert main(["try", folder, "no gap"]) != 0
    assert "expected one gap, written ___, found 'no gap'" in capsys.readouterr().err
    assert main(["try", folder, " ".join(words() * 50 + ["___"])]) != 0
    assert "tokens, and the model reads" in capsys.readouterr().err


def test_a_beginning_goes_on_and_always_alike(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = built("causal", tmp_path / "root")["pretrain"].folder.uri
    beginning = " ".join(words()[:2])
    lines = []
    for _ in range(2):
        assert main(["try", folder, beginning]) == 0
        lines.append(capsys.readouterr().out)
    assert lines[0] == lines[1]
    assert lines[0].startswith(beginning)
    assert len(lines[0].strip()) > len(beginning)


def test_lines_are_asked_for_until_the_input_ends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = built("mlm", tmp_path / "root")["pretrain"].folder.uri
    gap = f"{words()[0]} ___"
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{gap}\nno gap\n{gap}\n"))
    assert main(["try", folder]) == 0
    out, err = capsys.readouterr()
    first, second = out.splitlines()
    assert first == second
    assert SHARE.match(first)
    assert err.count("expected one gap") == 1
