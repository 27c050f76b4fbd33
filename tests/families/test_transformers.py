"""Small networks of some families of Hugging Face's transformers, with random weights and without downloads."""

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from family_checks import CHECKS, loss
from references import equal, few
from torch import Tensor, nn

from barebones import prune

os.environ.setdefault("HF_HUB_OFFLINE", "1")
transformers = pytest.importorskip("transformers", reason="needs transformers: pip install 'barebones[transformers]'")

TOKENS = torch.randint(5, 60, (2, 7), generator=torch.Generator().manual_seed(0))
PIXELS = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
TEXT = {"vocab_size": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
BERT = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def model(name: str, **options: Any) -> Callable[[], nn.Module]:
    """Return a function that builds the network of this class."""
    return lambda: getattr(transformers, name)(getattr(transformers, name).config_class(**options))


def tokens(**more: Tensor) -> dict[str, Tensor]:
    return {"input_ids": TOKENS, "attention_mask": torch.ones_like(TOKENS)} | more


FAMILIES: dict[str, tuple[Callable[[], nn.Module], Any]] = {
    "bert": (model("BertForSequenceClassification", **TEXT, **BERT, **NO_DROPOUT, num_labels=3), tokens()),
    "gpt2": (model("GPT2LMHeadModel", vocab_size=64, n_embd=16, n_layer=2, n_head=2, n_positions=16, bos_token_id=1,
                   eos_token_id=2, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False), tokens()),
    "llama": (model("LlamaForCausalLM", **TEXT, **BERT, num_key_value_heads=1, use_cache=False,
                    tie_word_embeddings=False), tokens()),
    "mixtral": (model("MixtralForCausalLM", **TEXT, **BERT, num_key_value_heads=1, num_local_experts=3,
                      use_cache=False), tokens()),
    "t5": (model("T5ForConditionalGeneration", vocab_size=64, d_model=16, d_kv=8, d_ff=24, num_layers=2, num_heads=2,
                 dropout_rate=0.0, decoder_start_token_id=0, use_cache=False),
           {"input_ids": TOKENS, "decoder_input_ids": TOKENS[:, :5]}),
    "mamba": (model("MambaForCausalLM", vocab_size=64, hidden_size=16, num_hidden_layers=2, state_size=4,
                    use_cache=False, pad_token_id=0, bos_token_id=1, eos_token_id=2), {"input_ids": TOKENS}),
    "vit": (model("ViTForImageClassification", **BERT, **NO_DROPOUT, image_size=32, patch_size=16, num_labels=3),
            {"pixel_values": PIXELS}),
    "segformer": (model("SegformerForSemanticSegmentation", num_encoder_blocks=2, depths=[1, 1], sr_ratios=[2, 1],
                        hidden_sizes=[8, 12], patch_sizes=[7, 3], strides=[4, 2], num_attention_heads=[1, 2],
                        mlp_ratios=[2, 2], decoder_hidden_size=16, drop_path_rate=0.0, classifier_dropout_prob=0.0,
                        num_labels=3), {"pixel_values": PIXELS}),
    "whisper": (model("WhisperModel", vocab_size=64, d_model=16, encoder_layers=1, decoder_layers=1,
                      encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=24, decoder_ffn_dim=24,
                      num_mel_bins=8, max_source_positions=10, max_target_positions=8, use_cache=False, dropout=0.0,
                      pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1),
                {"input_features": torch.randn(2, 8, 20), "decoder_input_ids": TOKENS[:, :5]}),
}  # fmt: skip


@pytest.fixture(autouse=True)
def quietly() -> Iterator[None]:
    """Start from the same random numbers, and without the log of transformers."""
    level = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    yield
    transformers.logging.set_verbosity(level)


@pytest.mark.filterwarnings("ignore")  # transformers' own
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize(
    ("name", "method"), [("vit", "synflow"), ("vit", "snip"), ("bert", "grasp"), ("llama", "force")]
)
def test_gradient_checkpointing_changes_no_score(name: str, method: str, reentrant: bool):
    build, example = FAMILIES[name]
    masks = []
    for checkpointing in (False, True):
        torch.manual_seed(0)
        network = build().train()
        if checkpointing:
            network.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
        options = {"objective": loss, "example": example, "on_collapse": "ignore"}
        masks.append(prune(network, [example], 0.9, few(method, rounds=2), **options).masks)
    assert equal(*masks)


@pytest.mark.filterwarnings("ignore")  # transformers' own
@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("name", FAMILIES)
def test_a_family(name: str, check: str):
    build, example = FAMILIES[name]
    CHECKS[check](build(), example)
