"""The torch backend's paged, ragged steps against whole-sequence forwards."""

import pytest
import torch

from journeyman.model import BLOCK, Llama, ModelConfig, StepBatch, causal_attend
from journeyman.model.backends import make_backend
from journeyman.model.torch_backend import TorchBackend
from journeyman.types import EngineError, UserError

CONFIG = ModelConfig(
    vocab_size=97,
    hidden_size=32,
    intermediate_size=48,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    tied_embeddings=True,
)


def chunk_batch(chunks, tables):
    """`chunks`: (tokens, first position) per sequence; samples the last token of each."""
    rows, slots, starts = [], [], [0]
    for (tokens, first), table in zip(chunks, tables, strict=True):
        places = range(first, first + len(tokens))
        rows += list(zip(tokens, places, strict=True))
        slots += [table[p // BLOCK] * BLOCK + p % BLOCK for p in places]
        starts.append(len(rows))
    count = len(chunks)
    int32 = torch.int32
    return StepBatch(
        token_ids=torch.tensor([token for token, _ in rows], dtype=int32),
        positions=torch.tensor([place for _, place in rows], dtype=int32),
        slots=torch.tensor(slots, dtype=int32),
        query_starts=torch.tensor(starts, dtype=int32),
        context_lens=torch.tensor([first + len(t) for t, first in chunks], dtype=int32),
        block_tables=torch.tensor(tables, dtype=int32),
        sample_rows=torch.tensor(starts[1:], dtype=int32) - 1,
        temperature=torch.zeros(count),
        top_p=torch.ones(count),
        seeds=torch.zeros(count, dtype=torch.int64),
    )


@pytest.fixture
def model():
    torch.manual_seed(2)
    model = Llama(CONFIG)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


@pytest.fixture
def backend(model):
    backend = TorchBackend(CONFIG)
    backend.allocate(16)
    backend.load(model.state_dict())
    return backend


def whole(model, tokens):
    """Greedy token and logprob after each token of the sequence."""
    with torch.no_grad():
        ids = torch.tensor(tokens)
        hidden = model(ids, torch.arange(len(ids)), causal_attend([0, len(ids)]))
        best = (hidden @ model.lm_head_weight.T).log_softmax(-1).max(-1)
    return best.indices, best.values


def test_ragged_steps_equal_whole_forwards(model, backend):
    a = torch.randint(0, 97, (45,)).tolist()
    b = torch.randint(0, 97, (20,)).tolist()
    c = torch.randint(0, 97, (7,)).tolist()
    tables = [[3, 9, 1], [2, 5, 0], [7, 0, 0]]
    backend.step(chunk_batch([(a[:30], 0), (b[:19], 0), (c[:1], 0)], tables))
    mixed = backend.step(chunk_batch([(a[30:], 30), (b[19:], 19), (c[1:], 1)], tables))
    for row, tokens in enumerate((a, b, c)):
        best, logprob = whole(model, tokens)
        assert mixed.token_ids[row] == best[-1]
        torch.testing.assert_close(mixed.logprobs[row], logprob[-1], atol=1e-4, rtol=1e-4)


def test_decode_after_decode_reuses_the_cache(model, backend):
    tokens = torch.randint(0, 97, (18,)).tolist()
    backend.step(chunk_batch([(tokens[:14], 0)], [[4, 6]]))
    for position in range(14, 18):
        got = backend.step(chunk_batch([(tokens[position : position + 1], position)], [[4, 6]]))
    assert got.token_ids[0] == whole(model, tokens)[0][-1]


def test_a_bad_state_is_refused_and_the_old_weights_stay(model, backend):
    tokens = list(range(10))
    before = backend.step(chunk_batch([(tokens, 0)], [[0]]))
    broken = dict(model.state_dict())
    del broken["model.norm.weight"]
    with pytest.raises(UserError, match=r"lacks the tensor model\.norm\.weight"):
        backend.load(broken)
    after = backend.step(chunk_batch([(tokens, 0)], [[0]]))
    assert torch.equal(before.logprobs, after.logprobs)


def test_loading_copies_the_weights(model, backend):
    tokens = list(range(10))
    before = backend.step(chunk_batch([(tokens, 0)], [[0]]))
    with torch.no_grad():
        model.model.norm.weight.zero_()
    after = backend.step(chunk_batch([(tokens, 0)], [[0]]))
    assert torch.equal(before.logprobs, after.logprobs)


def test_nan_weights_give_an_error_not_a_token(model, backend):
    broken = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    broken["model.layers.1.mlp.down_proj.weight"][3, 3] = float("nan")
    backend.load(broken)
    with pytest.raises(EngineError, match="not finite"):
        backend.step(chunk_batch([([1, 2, 3], 0)], [[0]]))


def test_no_weights_and_unknown_backends_are_refused():
    backend = TorchBackend(CONFIG)
    backend.allocate(1)
    with pytest.raises(EngineError, match="no weights"):
        backend.step(chunk_batch([([1], 0)], [[0]]))
    with pytest.raises(UserError, match=r"'cuda'.*\n.*native"):
        make_backend(CONFIG, "cuda")
