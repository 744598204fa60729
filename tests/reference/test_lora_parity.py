"""Low-rank changes learn as peft's do: a GPT-2, whose queries, keys and values are one matrix there
too, with the same weights, the same first matrices and the same steps.
"""

from typing import Any

import torch
import transformers

from rungwise.finetune.config import LoraAdaptation
from rungwise.finetune.loop import adapt, merge
from rungwise.models.families.gpt import GptForPretraining
from rungwise.serving.hugging_face import load_model

STEPS = 8
TOLERANCE: dict[str, Any] = {"atol": 1e-5, "rtol": 1e-5}


def test_eight_steps_and_the_merged_model_are_those_of_peft(tmp_path):
    import peft  # seconds, which collecting need not pay

    torch.manual_seed(11)
    sizes = {"vocab_size": 61, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 16}
    no_dropout = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    config = transformers.GPT2Config(**sizes, **no_dropout, bos_token_id=0, eos_token_id=0)
    language_model = transformers.GPT2LMHeadModel(config)
    with torch.no_grad():
        for parameter in language_model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    language_model.save_pretrained(tmp_path)
    family, state = load_model(tmp_path)
    whole = family.build(61, family.objective("causal"))
    whole.load_state_dict(state)
    assert isinstance(whole, GptForPretraining)
    ours = whole.gpt
    adapt(ours, LoraAdaptation(kind="lora", rank=3, alpha=12))
    theirs = peft.get_peft_model(
        language_model.transformer,
        peft.LoraConfig(
            r=3, lora_alpha=12, target_modules=["c_attn", "c_proj", "c_fc"], fan_in_fan_out=True
        ),
    )
    our_changes, their_changes = (
        [parameter for parameter in model.parameters() if parameter.requires_grad]
        for model in (ours, theirs)
    )
    assert [p.shape for p in our_changes] == [p.shape for p in their_changes]
    with torch.no_grad():
        for our_change, their_change in zip(our_changes, their_changes, strict=True):
            our_change.copy_(their_change)
    ids_BT, wanted_BTD = torch.randint(61, (4, 12)), torch.randn(4, 12, 32)
    first = ours.encode(ids_BT).detach()
    both = (
        (lambda: ours.encode(ids_BT), torch.optim.AdamW(our_changes, lr=0.01)),
        (lambda: theirs(ids_BT).last_hidden_state, torch.optim.AdamW(their_changes, lr=0.01)),
    )
    for _ in range(STEPS):
        found = []
        for encode, optimizer in both:
            states_BTD = encode()
            (states_BTD - wanted_BTD).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            found.append(states_BTD.detach())
        torch.testing.assert_close(found[0], found[1], **TOLERANCE)
    merge(ours)
    with torch.no_grad():
        merged_BTD = theirs.merge_and_unload()(ids_BT).last_hidden_state
        torch.testing.assert_close(ours.encode(ids_BT), merged_BTD, **TOLERANCE)
    assert (merged_BTD - first).abs().max() > 0.1, "steps that change nothing prove nothing"
