"""The native passes: the engine's bits forward, FP64's gradients backward."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from journeyman.model import BLOCK, ModelConfig, StepBatch, checkpoint
from journeyman.model.kernels import NativeBackend
from journeyman.trainer import Trainer
from journeyman.trainer.cache_layout import cache_layout
from journeyman.trainer.trie import pack_samples
from journeyman.types import Batch, Sample, UserError
from tests.unit.trainer.conftest import CONFIG, batch, sample, write_model

VOCABULARY = 96


def streams(seed: int, lengths: list[int], shared: list[int]) -> list[list[int]]:
    """Random streams; stream k repeats the first shared[k] tokens of the one before."""
    generator = torch.Generator().manual_seed(seed)
    found: list[list[int]] = []
    for length, common in zip(lengths, shared, strict=True):
        fresh = torch.randint(VOCABULARY, (length,), generator=generator).tolist()
        found.append([*found[-1][:common], *fresh[common:]] if found else fresh)
    return found


def tree(seed: int = 1) -> Batch:
    """Branches at a block's border, inside a block, inside a branch, and a long stream."""
    rows = streams(seed, [70, 90, 95, 33, 260], [0, 32, 45, 7, 3])
    return batch(
        *(
            sample(
                row,
                [i for i in range(5, len(row)) if i % 3 or i > 40],
                logprobs={i: -4.5 for i in range(len(row))},
                advantage=(-1.0) ** k * (0.5 + k),
                name=f"e{k}",
            )
            for k, row in enumerate(rows)
        )
    )


def make(model: Path, passes: str, **settings: object) -> Trainer:
    return Trainer(model, learning_rate=1e-3, passes=passes, **settings)  # type: ignore[arg-type]


def exact_trainer(model: Path, **settings: object) -> Trainer:
    return make(model, "torch", compute=torch.float64, master=torch.float64, **settings)


def on_policy(trainer: Trainer, of: Batch) -> Batch:
    """`of` as if sampled by the trainer: no ratio is near a bound, where roundings would decide
    which tokens have a gradient at all."""
    samples = []
    for one, found in zip(of.samples, trainer.log_probabilities(of.samples), strict=True):
        rest = iter(found)
        logprobs = tuple(next(rest) if on else 0.0 for on in one.stream.loss_mask)
        stream = one.stream.model_copy(update={"logprobs": logprobs})
        samples.append(one.model_copy(update={"stream": stream}))
    return batch(*samples)


def gradient(trainer: Trainer, of: Batch, loss: str) -> dict[str, torch.Tensor]:
    trainer.backward(of, loss)  # type: ignore[arg-type]
    return dict(trainer.parameters.named(trainer.parameters.gradient.clone()))


def engine_logprobs(backend: NativeBackend, one: Sample, temperature: float) -> list[float]:
    """As the engine computes them: a prefill of the whole stream, scored at sampled tokens."""
    ids = torch.tensor(one.stream.token_ids, dtype=torch.int32)
    places = [i for i, on in enumerate(one.stream.loss_mask) if on]
    count = len(ids)
    blocks = -(-count // BLOCK)
    backend.allocate(blocks)
    step = StepBatch(
        token_ids=ids,
        positions=torch.arange(count, dtype=torch.int32),
        slots=torch.arange(count, dtype=torch.int32),
        query_starts=torch.tensor([0, count], dtype=torch.int32),
        context_lens=torch.tensor([count], dtype=torch.int32),
        block_tables=torch.arange(blocks, dtype=torch.int32)[None],
        sample_rows=torch.tensor(places, dtype=torch.int32) - 1,
        temperature=torch.full((len(places),), temperature),
        top_p=torch.ones(len(places)),
        seeds=torch.zeros(len(places), dtype=torch.int64),
    )
    return backend.score(step, ids[places]).logprobs.tolist()


@pytest.mark.parametrize("temperature", [1.0, 0.8])
def test_log_probabilities_are_the_engines_bit_for_bit(
    wide_model: Path, temperature: float
) -> None:
    """Parity: shared prefixes, branches inside KV blocks and packs change nothing."""
    of = tree()
    backend = NativeBackend(ModelConfig.load(wide_model))
    backend.load(checkpoint.load_state(wide_model, torch.bfloat16))
    wanted = [engine_logprobs(backend, one, temperature) for one in of.samples]
    for max_nodes in (64, 2048):
        trainer = make(wide_model, "native", max_nodes=max_nodes, temperature=temperature)
        assert trainer.log_probabilities(of.samples) == wanted


@pytest.mark.parametrize("loss", ["supervised", "policy"])
def test_gradients_are_as_good_as_torchs_in_bf16(wide_model: Path, loss: str) -> None:
    trainer = exact_trainer(wide_model)
    of = on_policy(trainer, tree())
    exact = gradient(trainer, of, loss)
    plain = gradient(make(wide_model, "torch"), of, loss)
    native = gradient(make(wide_model, "native"), of, loss)
    for name, value in exact.items():
        error, plain_error = ((got[name] - value).norm() / value.norm() for got in (native, plain))
        assert error < 0.05, name
        assert error < 1.2 * plain_error, name


def test_untied_head_and_temperature(tmp_path: Path) -> None:
    config = {
        **CONFIG,
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "intermediate_size": 96,
        "head_dim": 64,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "tie_word_embeddings": False,
    }
    model = write_model(tmp_path, config, std=0.12)
    exact = exact_trainer(model, temperature=0.8)
    of = on_policy(exact, tree())
    native = gradient(make(model, "native", temperature=0.8), of, "policy")
    for name, value in gradient(exact, of, "policy").items():
        assert (native[name] - value).norm() / value.norm() < 0.05, name


def test_more_rows_than_the_head_gathers(wide_model: Path) -> None:
    (row,) = streams(4, [500], [0])
    rows = [row, *streams(5, [450, 480, 510], [0, 0, 0])]
    of = batch(*(sample(tokens, range(1, len(tokens))) for tokens in rows))
    exact = exact_trainer(wide_model)
    native = gradient(make(wide_model, "native"), of, "supervised")
    for name, value in gradient(exact, of, "supervised").items():
        assert (native[name] - value).norm() / value.norm() < 0.05, name


def test_bits_do_not_depend_on_threads_or_on_what_was_computed_before(
    wide_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for threads in ("1", "2", "5"):
        monkeypatch.setenv("JOURNEYMAN_THREADS", threads)
        torch.set_num_threads(int(threads))
        trainer = make(wide_model, "native")
        if threads == "2":
            trainer.backward(batch(sample(streams(9, [400], [0])[0], range(1, 400))), "supervised")
        metrics = trainer.step(tree(), "policy")
        found.append((trainer.weights()[0].digest, metrics.loss, metrics.gradient_norm))
    assert found[0] == found[1] == found[2]


@settings(max_examples=30)
@given(st.data())
def test_every_node_is_found_in_the_cache_through_its_segments_table(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 6))
    lengths = data.draw(st.lists(st.integers(2, 60), min_size=count, max_size=count))
    shared = [min(data.draw(st.integers(0, 50)), length - 1) for length in lengths]
    samples = [
        sample(row, [len(row) - 1])
        for row in streams(data.draw(st.integers(0, 9)), lengths, shared)
    ]
    for pack in pack_samples(samples, 100):
        layout = cache_layout(pack)
        holder = {
            slot: node
            for node in range(len(pack.token_ids))
            for slot in layout.slots[layout.slot_starts[node] : layout.slot_starts[node + 1]]
        }
        assert len(holder) == len(layout.slots)  # no slot holds two nodes
        assert max(holder) < layout.num_blocks * BLOCK
        for index, segment in enumerate(pack.segments):
            spans = [*(pack.segments[above] for above in segment.context), segment]
            path = [node for span in spans for node in range(span.start, span.end)]
            for position, node in enumerate(path):
                block = layout.block_tables[index, position // BLOCK]
                assert holder[block * BLOCK + position % BLOCK] == node


def test_unsupported_widths_and_names_are_refused_with_the_cure(tiny_model: Path) -> None:
    with pytest.raises(UserError, match="vocab_size 61 is no multiple of 32"):
        make(tiny_model, "native")
    with pytest.raises(UserError, match="known: auto, native, torch"):
        make(tiny_model, "cuda")
