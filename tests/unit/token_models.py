"""Small models of tokens, rows and graphs of features, as architectures of today have them."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional

Tensor = torch.Tensor


class Mlp(nn.Module):
    """Layers with norms, dropout and an activation that a name chooses."""

    def __init__(self, width: int = 16, hidden: int = 32, out: int = 8) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Linear(width, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Dropout(0.1)),
            *(nn.Linear(hidden, hidden), nn.LayerNorm(hidden), nn.SiLU(), nn.Linear(hidden, out), nn.Sigmoid()),
        )

    def forward(self, x: Tensor) -> Any:
        return self.layers(x)


class Autoencoder(nn.Module):
    """A variational one, whose noise is an input."""

    def __init__(self, width: int = 24, code: int = 4) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(width, 16), nn.ELU(), nn.Linear(16, 8), nn.Tanh())
        self.mean, self.spread = nn.Linear(8, code), nn.Linear(8, code)
        self.decode = nn.Sequential(nn.Linear(code, 16), nn.LeakyReLU(0.1), nn.Linear(16, width), nn.Sigmoid())

    def forward(self, x: Tensor, noise: Tensor) -> Any:
        y = self.encode(x)
        mean, spread = self.mean(y), self.spread(y)
        made = self.decode(mean + noise * torch.exp(0.5 * spread))
        return made, -0.5 * (1 + spread - mean.square() - spread.exp()).sum(-1).mean()


class EncoderDecoder(nn.Module):
    """torch's own transformer, with masks."""

    def __init__(self, width: int = 16, heads: int = 2) -> None:
        super().__init__()
        self.model = nn.Transformer(width, heads, 1, 1, 32, 0.0, batch_first=True)

    def forward(self, source: Tensor, target: Tensor) -> Any:
        length = target.shape[1]
        mask = torch.full((length, length), float("-inf"), dtype=target.dtype).triu(1)
        return self.model(source, target, tgt_mask=mask, tgt_is_causal=True)


class Gpt(nn.Module):
    """Embeddings of tokens and places, blocks with one layer for all of attention, and tied weights at the end."""

    def __init__(self, words: int = 32, width: int = 16, heads: int = 2, longest: int = 8) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(longest, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.joined, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow, self.heads = nn.Linear(width, 4 * width), nn.Linear(4 * width, width), heads

    def forward(self, tokens: Tensor) -> Any:
        batch, length = tokens.shape
        x = self.words(tokens) + self.places(torch.arange(length))
        query, key, value = (
            each.unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in self.joined(self.norms[0](x)).chunk(3, -1)
        )
        scores = query @ key.mT / math.sqrt(query.shape[-1])
        hidden = torch.ones(length, length, dtype=torch.bool).tril().logical_not()
        scores = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        x = x + self.out((scores @ value).transpose(1, 2).reshape(batch, length, -1))
        x = x + self.narrow(functional.gelu(self.wide(self.norms[1](x)), approximate="tanh"))
        return functional.linear(self.norms[2](x), self.words.weight)


class Bert(nn.Module):
    """Norms behind residuals, a mask of tokens, attention by torch's own function, and a head for classes."""

    def __init__(self, words: int = 32, width: int = 16, heads: int = 4) -> None:
        super().__init__()
        self.words, self.kinds = nn.Embedding(words, width), nn.Embedding(2, width)
        self.first, self.second, self.third = (nn.LayerNorm(width) for _ in range(3))
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.wide, self.narrow = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.pool, self.classes, self.heads = nn.Linear(width, width), nn.Linear(width, 3), heads

    def forward(self, tokens: Tensor, kinds: Tensor, mask: Tensor) -> Any:
        x = self.first(self.words(tokens) + self.kinds(kinds))
        query, key, value = (
            layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        y = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask[:, None, None, :])
        x = self.second(x + self.out(y.transpose(1, 2).flatten(-2)))
        x = self.third(x + self.narrow(functional.gelu(self.wide(x))))
        return self.classes(torch.tanh(self.pool(x[:, 0])))


class RelativeAttention(nn.Module):
    """Attention as T5 has it: no scale, and a bias for each head by how far tokens lie apart."""

    def __init__(self, width: int = 16, heads: int = 2, buckets: int = 6) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(4))
        self.apart, self.norm = nn.Embedding(buckets, heads), nn.RMSNorm(width)
        self.heads, self.buckets = heads, buckets
        self.gate, self.up, self.down = (
            nn.Linear(*each, bias=False) for each in ((width, 32), (width, 32), (32, width))
        )

    def forward(self, x: Tensor) -> Any:
        places = torch.arange(x.shape[1])
        apart = (places[None] - places[:, None]).abs().clamp(max=self.buckets - 1)
        bias = self.apart(apart).permute(2, 0, 1)[None]
        y = self.norm(x)
        query, key, value = (layer(y).unflatten(-1, (self.heads, -1)).transpose(1, 2) for layer in self.layers[:3])
        scores = torch.softmax((torch.matmul(query, key.transpose(3, 2)) + bias).float(), -1).type_as(query)
        x = x + self.layers[3](torch.matmul(scores, value).transpose(1, 2).flatten(-2))
        return x + self.down(functional.gelu(self.gate(x), approximate="tanh") * self.up(x))


class Llama(nn.Module):
    """RMS norms, rotated queries and keys, fewer heads of keys than of queries, and a gated feed-forward layer."""

    def __init__(self, width: int = 16, heads: int = 4, of_keys: int = 2, hidden: int = 40) -> None:
        super().__init__()
        self.of_head, self.repeated = width // heads, heads // of_keys
        self.query, self.out = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.key, self.value = (nn.Linear(width, of_keys * self.of_head, bias=False) for _ in range(2))
        self.first, self.second = nn.RMSNorm(width), nn.RMSNorm(width)
        self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, width, bias=False)

    def rotated(self, x: Tensor) -> Tensor:
        rates = 1e4 ** (-torch.arange(0, self.of_head, 2) / self.of_head)
        angles = torch.outer(torch.arange(x.shape[-2]), rates).repeat(1, 2)
        low, high = x.chunk(2, -1)
        return (x * angles.cos() + torch.cat((-high, low), -1) * angles.sin()).to(x.dtype)

    def forward(self, x: Tensor) -> Any:
        y = self.first(x)
        query, key, value = (
            layer(y).unflatten(-1, (-1, self.of_head)).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        query, key = self.rotated(query), self.rotated(key).repeat_interleave(self.repeated, 1)
        value = value.repeat_interleave(self.repeated, 1)
        scores = (query @ key.mT * self.of_head**-0.5 + torch.full((x.shape[1],) * 2, -1e4).triu(1)).softmax(-1)
        x = x + self.out((scores.to(x.dtype) @ value).transpose(1, 2).flatten(-2))
        y = self.second(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


class MixtureOfExperts(nn.Module):
    """A router, the two best experts of each token by weights of all experts, and a shared one."""

    def __init__(self, width: int = 16, hidden: int = 24, experts: int = 4) -> None:
        super().__init__()
        self.router, self.shared = nn.Linear(width, experts, bias=False), nn.Linear(width, width)
        self.up = nn.Parameter(torch.randn(experts, width, hidden) * width**-0.5)
        self.down = nn.Parameter(torch.randn(experts, hidden, width) * hidden**-0.5)

    def forward(self, x: Tensor) -> Any:
        best, chosen = self.router(x).softmax(-1).topk(2, -1)
        share = torch.zeros(x.shape[0], self.up.shape[0], dtype=x.dtype).scatter(1, chosen, best / best.sum(-1, True))
        every = torch.bmm(functional.silu(torch.bmm(x.expand(self.up.shape[0], -1, -1), self.up)), self.down)
        return torch.sigmoid(self.shared(x)) + (every * share.T[..., None]).sum(0)


class Recurrent(nn.Module):
    """A cell of a GRU that is written out over a sequence, behind a cell and a layer of torch's own."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.inside, self.state = nn.Linear(width, 3 * width), nn.Linear(width, 3 * width)
        self.cell, self.layer = nn.LSTMCell(width, width), nn.LSTM(width, width, batch_first=True)

    def forward(self, x: Tensor) -> Any:
        x = self.layer(x)[0]
        state = memory = x.new_zeros(x.shape[0], x.shape[2])
        made = []
        for each in x.unbind(1):
            reset, update, new = self.inside(each).chunk(3, -1)
            of_reset, of_update, of_new = self.state(state).chunk(3, -1)
            share = torch.sigmoid(update + of_update)
            new = torch.tanh(new + torch.sigmoid(reset + of_reset) * of_new)
            state = (1 - share) * new + share * state
            state, memory = self.cell(state, (state, memory))
            made.append(state)
        return torch.stack(made, 1)


class Recommender(nn.Module):
    """DLRM: bags of embeddings and dense features, whose products with each other are features as well."""

    def __init__(self, width: int = 8, tables: int = 3) -> None:
        super().__init__()
        self.dense = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, width), nn.ReLU())
        self.tables = nn.ModuleList(nn.EmbeddingBag(10, width, mode="sum") for _ in range(tables))
        pairs = tables * (tables + 1) // 2
        self.top = nn.Sequential(nn.Linear(width + pairs, 16), nn.ReLU(), nn.Linear(16, 1), nn.Sigmoid())
        self.register_buffer("below", torch.tril_indices(tables + 1, tables + 1, -1))

    def forward(self, features: Tensor, categories: Tensor) -> Any:
        dense = self.dense(features)
        every = torch.stack([dense, *(table(each) for table, each in zip(self.tables, categories, strict=True))], 1)
        products = torch.bmm(every, every.transpose(1, 2))
        below: Any = self.below
        return self.top(torch.cat((dense, products[:, below[0], below[1]]), 1)).squeeze(-1)


class TwoTowers(nn.Module):
    """Two encoders whose normalised codes are compared with each other, at a temperature that is learned."""

    def __init__(self, code: int = 8) -> None:
        super().__init__()
        self.image = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16, 32), nn.GELU(), nn.Linear(32, code, bias=False))
        self.words, self.text = nn.Embedding(20, 16), nn.Linear(16, code, bias=False)
        self.temperature = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def forward(self, images: Tensor, tokens: Tensor) -> Any:
        image = functional.normalize(self.image(images), dim=-1)
        text = functional.normalize(self.text(self.words(tokens).mean(1)), dim=-1)
        scores = self.temperature.exp() * image @ text.t()
        target = torch.arange(scores.shape[0])
        return scores, (functional.cross_entropy(scores, target) + functional.cross_entropy(scores.t(), target)) / 2


class GraphConvolution(nn.Module):
    """Features of nodes, joined along edges that a matrix has, with attention of one layer."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.scores, self.norm = nn.Linear(2 * width, 1), nn.BatchNorm1d(width)

    def forward(self, x: Tensor, edges: Tensor) -> Any:
        degrees = edges.sum(-1, keepdim=True).clamp(min=1)
        x = functional.relu(self.norm(edges @ self.layers[0](x) / degrees))
        y, count = self.layers[1](x), x.shape[0]
        pairs = torch.cat((y[:, None].expand(-1, count, -1), y[None].expand(count, -1, -1)), -1)
        scores = functional.leaky_relu(self.scores(pairs).squeeze(-1), 0.2).masked_fill(edges == 0, -1e9)
        return functional.elu(scores.softmax(-1) @ y) + x
