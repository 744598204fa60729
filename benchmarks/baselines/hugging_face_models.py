"""A peer: BERT, ModernBERT and GPT-2 of `transformers`, trained as its documents have it.

`labels` go in and a mean loss comes out; attention is `sdpa`; dropout is 0 as in ours; the cache of
keys and values is off. BERT's loss takes the logits of every position, which is how
`BertForPreTraining` works; `MaskedHead` is what a user could write to spare that. GPT-2's own
`gelu_new` is a chain of seven operations; `gelu_pytorch_tanh`, the same function in one, is the
fastest setting that needs no code.

Shapes: B batch, T sequence, M masked positions, V vocabulary.
"""

import os
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import transformers

IGNORED = -100


def bert(**sizes: int) -> nn.Module:
    """`BertForPreTraining` with random weights."""
    no_dropout: Any = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)
    return transformers.BertForPreTraining(
        transformers.BertConfig(**_encoder_keys(**sizes), **no_dropout)
    )


def modern_bert(**sizes: int) -> nn.Module:
    """`ModernBertForMaskedLM` with random weights; its dropout is 0 by default."""
    marks: Any = {f"{name}_token_id": 0 for name in ("pad", "bos", "cls", "eos", "sep")}
    return transformers.ModernBertForMaskedLM(
        transformers.ModernBertConfig(**_encoder_keys(**sizes), **marks)
    )


def _encoder_keys(num_layers: int, num_heads: int, **sizes: int) -> Any:
    """Name the sizes as their configs of encoders do."""
    depth = {"num_hidden_layers": num_layers, "num_attention_heads": num_heads}
    return sizes | depth | {"attn_implementation": "sdpa"}


def gpt2(
    num_layers: int,
    num_heads: int,
    hidden_size: int,
    intermediate_size: int,
    max_position_embeddings: int,
    vocab_size: int,
    one_kernel: bool,
) -> nn.Module:
    """`GPT2LMHeadModel` with random weights; `one_kernel`: see the head of this file."""
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=vocab_size,
            n_embd=hidden_size,
            n_layer=num_layers,
            n_head=num_heads,
            n_inner=intermediate_size,
            n_positions=max_position_embeddings,
            activation_function="gelu_pytorch_tanh" if one_kernel else "gelu_new",
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            use_cache=False,
            attn_implementation="sdpa",  # pyright: ignore[reportCallIssue] taken by the base class
        )
    )


class MaskedHead(nn.Module):
    """`BertForPreTraining`, its parts put together so that only masked positions get logits."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        input_ids: Tensor,
        token_type_ids: Tensor,
        attention_mask: Tensor | None,
        positions_BM: Tensor,
        labels_BM: Tensor,
        next_sentence_label: Tensor,
    ) -> Tensor:
        output = self.model.bert(
            input_ids=input_ids, token_type_ids=token_type_ids, attention_mask=attention_mask
        )
        hidden_BTD = output.last_hidden_state
        index_BMD = positions_BM[:, :, None].expand(-1, -1, hidden_BTD.shape[-1])
        logits_BMV = self.model.cls.predictions(hidden_BTD.gather(1, index_BMD))
        nsp_B2 = self.model.cls.seq_relationship(output.pooler_output)
        masked = functional.cross_entropy(
            logits_BMV.flatten(0, 1).float(), labels_BM.flatten(), ignore_index=IGNORED
        )
        return masked + functional.cross_entropy(nsp_B2.float(), next_sentence_label)
