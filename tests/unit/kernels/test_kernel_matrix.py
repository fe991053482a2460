"""One product: exact sums, awkward shapes, bits that do not depend on the number of rows."""

import pytest
import torch

from journeyman.model.kernels import PackedMatrix
from journeyman.types import UserError


def matrices(outputs, inputs, rows, seed=0):
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(outputs, inputs, generator=generator).bfloat16()
    return weight, torch.randn(rows, inputs, generator=generator).bfloat16()


@pytest.mark.parametrize(
    ("outputs", "inputs"), [(576, 576), (1, 1), (17, 31), (48, 33), (49, 64), (960, 130), (16, 7)]
)
@pytest.mark.parametrize("rows", [0, 1, 2, 9, 33])
def test_products_agree_with_float64(every_isa, outputs, inputs, rows):
    weight, source = matrices(outputs, inputs, rows)
    got = PackedMatrix(weight, isa=every_isa)(source)
    want = source.double() @ weight.double().T
    # Float32 sums of exact products: the error bound of recursive summation.
    bound = source.double().abs() @ weight.double().abs().T * inputs * 2.0**-24
    assert got.shape == (rows, outputs)
    assert bool(((got.double() - want).abs() <= bound + 1e-30).all())


def test_whole_numbers_are_exact(every_isa):
    generator = torch.Generator().manual_seed(1)
    weight = torch.randint(-8, 9, (100, 96), generator=generator).bfloat16()
    source = torch.randint(-8, 9, (21, 96), generator=generator).bfloat16()
    got = PackedMatrix(weight, isa=every_isa)(source)
    assert torch.equal(got.double(), source.double() @ weight.double().T)


def test_a_row_has_the_same_bits_among_any_others(every_isa):
    weight, source = matrices(700, 576, 600)
    whole = PackedMatrix(weight, isa=every_isa, threads=2)(source)
    for threads in (1, 2, 3):
        packed = PackedMatrix(weight, isa=every_isa, threads=threads)
        for begin, end in ((0, 1), (7, 14), (0, 64), (599, 600), (255, 257), (0, 257), (1, 600)):
            assert torch.equal(packed(source[begin:end]), whole[begin:end])


def test_what_is_not_a_matrix_is_refused():
    with pytest.raises(UserError, match=r"not torch\.float32 \[4, 4\]"):
        PackedMatrix(torch.ones(4, 4))
    with pytest.raises(UserError, match=r"\[0, 4\]"):
        PackedMatrix(torch.ones(0, 4).bfloat16())
    with pytest.raises(UserError, match=r"not bf16 \[M, 4\]"):
        PackedMatrix(torch.ones(4, 4).bfloat16())(torch.ones(2, 3).bfloat16())
