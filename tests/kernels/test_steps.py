"""The layout of time: what a packed batch holds, where states come from, where sequences end."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.utils.rnn import pack_sequence, pad_packed_sequence

from steadygrad.kernels import Steps


@given(lengths=st.lists(st.integers(1, 7), min_size=1, max_size=6), reverse=st.booleans())
def test_previous_and_last_match_packed_sequences(lengths, reverse):
    lengths = sorted(lengths, reverse=True)
    # each row says which sequence and which time it is
    packed = pack_sequence(
        [torch.tensor([[i, t] for t in range(n)], dtype=torch.float64) for i, n in enumerate(lengths)]
    )
    steps = Steps(tuple(packed.batch_sizes.tolist()), reverse)
    initial = torch.tensor([[i, -1.0] for i in range(len(lengths))], dtype=torch.float64)
    for (i, t), (j, before) in zip(packed.data.tolist(), steps.previous(packed.data, initial).tolist(), strict=True):
        start = lengths[int(i)] - 1 if reverse else 0
        assert (j, before) == (i, -1 if t == start else t + 1 if reverse else t - 1)
    ends = [[i, 0.0 if reverse else n - 1.0] for i, n in enumerate(lengths)]
    assert steps.last(packed.data).tolist() == ends


def test_padded_steps_match_packed_sequence_of_equal_lengths():
    x = torch.randn(4, 3, 2)
    packed = pack_sequence(list(x.unbind(1)))
    assert Steps.padded(4, 3).sizes == tuple(packed.batch_sizes.tolist())
    torch.testing.assert_close(pad_packed_sequence(packed)[0], x)
