"""Attention of queries to tokens, and a feed-forward part (Vaswani et al., 2017)."""

from torch import Tensor, nn
from torch.nn import functional as F

from steadygrad.models.relational.model import perceptron


class AttentionLayer(nn.Module):
    """x ← norm(x + W_o [softmax(Q_h K_hᵀ / √d) V_h]_h),  x ← norm(x + W₂ relu(W₁ x)), over the heads h.

    Q = W_q x,  K = W_k y,  V = W_v y, each ``inner_size`` wide, d = inner_size / heads. A post-norm layer without
    dropout: the queries x (batch, queries, width) attend to the tokens y (batch, tokens, token_width); the result has
    the shape of x. W₁ has ``hidden_size`` units. A transformer's encoder layer has y = x. ``symmetric`` uses W_q for
    the keys too. Weights are initialised as in torch's `nn.Linear`. If inner_size is not a multiple of heads,
    ValueError is raised.
    """

    def __init__(
        self, width: int, token_width: int, inner_size: int, heads: int, hidden_size: int, symmetric: bool = False
    ) -> None:
        super().__init__()
        if inner_size % heads:
            raise ValueError(f"AttentionLayer expects inner_size to be a multiple of heads, {heads}; got {inner_size}")
        self.heads = heads
        self.query = nn.Linear(width, inner_size)
        self.key = None if symmetric else nn.Linear(token_width, inner_size)
        self.value = nn.Linear(token_width, inner_size)
        self.merge = nn.Linear(inner_size, width)
        self.attention_norm = nn.LayerNorm(width)
        self.feedforward = perceptron(width, hidden_size, width)
        self.feedforward_norm = nn.LayerNorm(width)

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        """Return x after attending to ``tokens``, followed by the feed-forward part.

        x and the result are (batch, queries, width), ``tokens`` is (batch, tokens, token_width).
        """
        key = self.query if self.key is None else self.key
        query, keys, values = (self._by_head(part) for part in (self.query(x), key(tokens), self.value(tokens)))
        attended = F.scaled_dot_product_attention(query, keys, values)
        x = self.attention_norm(x + self.merge(attended.transpose(1, 2).flatten(2)))
        return self.feedforward_norm(x + self.feedforward(x))

    def _by_head(self, x: Tensor) -> Tensor:
        """Split features into heads: (batch, n, inner_size) → (batch, heads, n, inner_size / heads)."""
        return x.unflatten(2, (self.heads, -1)).transpose(1, 2)
