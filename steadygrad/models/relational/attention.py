"""A layer of the transformer's encoder (Vaswani et al., 2017), with queries as wide as one likes."""

from torch import Tensor, nn
from torch.nn import functional as F

from steadygrad.models.relational.model import perceptron


class TransformerLayer(nn.Module):
    """x ← norm(x + W_o [softmax(Q_h K_hᵀ / √d) V_h]_h),  x ← norm(x + W₂ relu(W₁ x)), over the heads h.

    x (batch, tokens, width) → the same; d is ``query_size``, values are width / heads wide. `torch.nn` ties the two.
    ``symmetric`` has the queries serve as keys. No dropout.
    """

    def __init__(self, width: int, heads: int, query_size: int, hidden_size: int, symmetric: bool = False) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"TransformerLayer expects a width that {heads} heads can share; got {width}")
        self.heads = heads
        self.query = nn.Linear(width, heads * query_size)
        self.key = None if symmetric else nn.Linear(width, heads * query_size)
        self.value = nn.Linear(width, width)
        self.merge = nn.Linear(width, width)
        self.attention_norm = nn.LayerNorm(width)
        self.feedforward = perceptron(width, hidden_size, width)
        self.feedforward_norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        query = self._by_head(self.query(x))
        key = query if self.key is None else self._by_head(self.key(x))
        attended = F.scaled_dot_product_attention(query, key, self._by_head(self.value(x)))
        x = self.attention_norm(x + self.merge(attended.transpose(1, 2).flatten(2)))
        return self.feedforward_norm(x + self.feedforward(x))

    def _by_head(self, x: Tensor) -> Tensor:
        return x.unflatten(2, (self.heads, -1)).transpose(1, 2)
