"""Ports of Flax' nets of images, gates and experts."""

from __future__ import annotations

import torch
from torch.nn import (
    GELU,
    GRU,
    BatchNorm2d,
    Conv2d,
    Dropout,
    Embedding,
    Identity,
    LayerNorm,
    Linear,
    MultiheadAttention,
    Parameter,
)
from torch.nn.functional import gelu, relu, scaled_dot_product_attention

from nets.common import (
    Net,
    Port,
    attend,
    conv0,
    dense0,
    ids,
    image,
    lstm,
    norm,
    numbers,
    own,
    parameter,
    pooled,
    resnet18,
    rows,
)


def mixing(i: int, o: int) -> Net:
    return Net(lambda s, x: s.fc2(gelu(s.fc1(x))), fc1=Linear(i, o), fc2=Linear(o, i))


def mixed() -> Net:
    def compute(s, x):
        x = x + s.mlp_tokens(s.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + s.mlp_channels(s.norm2(x))

    return Net(
        compute, norm1=LayerNorm(16), mlp_tokens=mixing(16, 32), norm2=LayerNorm(16), mlp_channels=mixing(16, 32)
    )


def mixer() -> Net:
    """The names of timm's MLP-Mixer."""
    return Net(
        lambda s, x: s.head(s.norm(s.blocks(rows(s.stem.proj(x)))).mean(1)),
        stem=Net(proj=Conv2d(3, 16, 4, 4)), blocks=[mixed() for _ in range(3)], norm=LayerNorm(16),
        head=Linear(16, 10),
    )  # fmt: skip


def gru() -> Net:
    net = Net(
        lambda s, x: s.out(s.gru(s.embed(x))[0]), embed=Embedding(40, 10), gru=GRU(10, 16, batch_first=True),
        out=Linear(16, 40),
    )  # fmt: skip
    with torch.no_grad():
        net.gru.bias_hh_l0[:32] = 0
    return net


def vit_layer() -> Net:
    def compute(s, x):
        x = x + own(s.self_attention, s.ln_1(x))
        return x + s.mlp(s.ln_2(x))

    return Net(
        compute, ln_1=norm(16), self_attention=MultiheadAttention(16, 4, batch_first=True), ln_2=norm(16),
        mlp=[Linear(16, 48), GELU(), Dropout(0.0), Linear(48, 16)],
    )  # fmt: skip


def flax_vit() -> Net:
    """The names of torchvision's ViT, whose attention holds q, k and v in one matrix."""

    def compute(s, x):
        x = torch.cat([s.class_token.expand(len(x), -1, -1), rows(s.conv_proj(x))], 1) + s.encoder.pos_embedding
        for k in range(3):
            x = getattr(s.encoder.layers, f"encoder_layer_{k}")(x)
        return s.heads.head(s.encoder.ln(x)[:, 0])

    token, projection = Parameter(torch.zeros(1, 1, 16)), Conv2d(3, 16, 4, 4)
    places = Parameter(torch.randn(1, 17, 16) * 0.02)
    layers = Net(**{f"encoder_layer_{k}": vit_layer() for k in range(3)})
    return Net(
        compute, class_token=token, conv_proj=projection,
        encoder=Net(pos_embedding=places, layers=layers, ln=norm(16)), heads=Net(head=Linear(16, 10)),
    )  # fmt: skip


def bank(d: int, count: int) -> Net:
    """Experts whose matrices are stacked in one parameter."""

    def compute(s, x):
        h = s.norm(x)
        y = torch.einsum("btd,edf->btef", h, s.w1).relu()
        return x + torch.einsum("btef,efd,bte->btd", y, s.w2, s.router(h).softmax(-1))

    return Net(
        compute, norm=LayerNorm(d), router=dense0(d, count), w1=parameter(count, d, 2 * d),
        w2=parameter(count, 2 * d, d),
    )  # fmt: skip


def banks() -> Net:
    return Net(
        lambda s, x: s.out(s.blocks(s.inp(x))), inp=Linear(8, 12), blocks=[bank(12, 6), bank(12, 6)],
        out=Linear(12, 3),
    )  # fmt: skip


def split(d: int, heads: int) -> Net:
    """One block whose q, k and v are matrices of their own."""

    def compute(s, x):
        h = s.ln1(x)
        x = x + s.o_proj(attend(s.q_proj(h), s.k_proj(h), s.v_proj(h), d // heads))
        return x + s.fc2(s.fc1(s.ln2(x)).relu())

    projections = {f"{n}_proj": Linear(d, d) for n in "qkvo"}
    return Net(
        compute, ln1=LayerNorm(d), ln2=LayerNorm(d), **projections, fc1=Linear(d, 3 * d),
        fc2=Linear(3 * d, d),
    )  # fmt: skip


def vit() -> Net:
    return Net(
        lambda s, x: s.head(s.norm(s.blocks(rows(s.patch(x)))).mean(1)), patch=Conv2d(3, 12, 4, 4),
        blocks=[split(12, 3) for _ in range(4)], norm=LayerNorm(12), head=Linear(12, 10),
    )  # fmt: skip


CLIP = 16  # its width


def clip_block() -> Net:
    def compute(s, x):
        x = x + own(s.attn, s.ln_1(x))
        y = s.mlp.c_fc(s.ln_2(x))
        return x + s.mlp.c_proj(y * torch.sigmoid(1.702 * y))

    return Net(
        compute, attn=MultiheadAttention(CLIP, 2, batch_first=True), ln_1=LayerNorm(CLIP),
        mlp=Net(c_fc=Linear(CLIP, 4 * CLIP), c_proj=Linear(4 * CLIP, CLIP)), ln_2=LayerNorm(CLIP),
    )  # fmt: skip


def clip_tower() -> Net:
    return Net(lambda s, x: s.resblocks(x), resblocks=[clip_block() for _ in range(3)])


def visual() -> Net:
    def compute(s, x):
        x = torch.cat([s.class_embedding.expand(len(x), 1, -1), rows(s.conv1(x))], 1) + s.positional_embedding
        return s.ln_post(s.transformer(s.ln_pre(x))[:, 0]) @ s.proj

    return Net(
        compute, class_embedding=parameter(CLIP), positional_embedding=parameter(17, CLIP), proj=parameter(CLIP, 12),
        conv1=Conv2d(3, CLIP, 4, 4, bias=False), ln_pre=LayerNorm(CLIP), transformer=clip_tower(),
        ln_post=LayerNorm(CLIP),
    )  # fmt: skip


def clip() -> Net:
    def compute(s, x):
        """The text is made of the image's first row."""
        text = (x[:, 0, 0, :10].abs() * 20).long() % 40
        y = s.ln_final(s.transformer(s.token_embedding(text) + s.positional_embedding))[:, -1] @ s.text_projection
        return torch.cat([s.visual(x), y, s.visual(x) @ y.T * s.logit_scale.exp()], 1)

    return Net(
        compute, positional_embedding=parameter(10, CLIP), text_projection=parameter(CLIP, 12),
        logit_scale=Parameter(torch.tensor(1.0)), visual=visual(), transformer=clip_tower(),
        token_embedding=Embedding(40, CLIP), ln_final=LayerNorm(CLIP),
    )  # fmt: skip


def se_block(i: int, o: int) -> Net:
    def compute(s, x):
        y = s.bn3(s.conv3(relu(s.bn2(s.conv2(relu(s.bn1(s.conv1(x))))))))
        gate = torch.sigmoid(s.fc2(relu(s.fc1(pooled(y)))))
        return relu(s.proj_bn(s.proj(x)) + y * gate[:, :, None, None])

    same = i == o
    return Net(
        compute, conv1=conv0(i, o, 1), bn1=BatchNorm2d(o), conv2=conv0(o, o, groups=4), bn2=BatchNorm2d(o),
        conv3=conv0(o, o, 1), bn3=BatchNorm2d(o), fc1=Linear(o, o // 4), fc2=Linear(o // 4, o),
        proj=Identity() if same else conv0(i, o, 1), proj_bn=Identity() if same else BatchNorm2d(o),
    )  # fmt: skip


def senet() -> Net:
    return Net(
        lambda s, x: s.fc(pooled(s.stages(relu(s.stem_bn(s.stem(x)))))), stem=conv0(3, 16), stem_bn=BatchNorm2d(16),
        stages=[se_block(16, 16), se_block(16, 16), se_block(16, 32), se_block(32, 32)], fc=Linear(32, 7),
    )  # fmt: skip


def cross(d: int, e: int) -> Net:
    def compute(s, x, y):
        x = x + s.o(scaled_dot_product_attention(s.q(s.ln_q(x)), *s.kv(s.ln_kv(y)).chunk(2, -1)))
        return x + s.w2(gelu(s.w1(s.ln_mlp(x)), approximate="tanh"))

    return Net(
        compute, ln_q=norm(d), ln_kv=norm(e), ln_mlp=norm(d), q=dense0(d, d), kv=dense0(e, 2 * d), o=Linear(d, d),
        w1=Linear(d, 2 * d), w2=Linear(2 * d, d),
    )  # fmt: skip


def perceiver() -> Net:
    def compute(s, x):
        z = s.cross(s.latents.expand(len(x), -1, -1), x)
        for block in s.own:
            z = block(z, z)
        return s.head(s.norm(z).mean(1))

    return Net(
        compute, latents=parameter(6, 14), cross=cross(14, 9), own=[cross(14, 14), cross(14, 14)], norm=norm(14),
        head=Linear(14, 5),
    )  # fmt: skip


PORTS = {
    "flax-resnet": Port("Flax ResNet-18 into torchvision's names", resnet18, image(3, 16)),
    "mixer": Port("Flax MLP-Mixer into timm's names", mixer, image(3, 16)),
    "flax-lstm": Port("Flax LSTMCell, a matrix for each gate", lstm, ids(40)),
    "flax-gru": Port("Flax GRUCell, a matrix for each gate", gru, ids(40)),
    "flax-vit": Port("Flax ViT into nn.MultiheadAttention", flax_vit, image(3, 16)),
    "banks": Port("Flax experts into stacked parameters", banks, numbers(2, 6, 8)),
    "vit": Port("Flax ViT, scanned layers, heads as axes", vit, image(3, 16)),
    "clip": Port("Flax CLIP into OpenAI's, two towers", clip, image(3, 16)),
    "senet": Port("Flax SE-ResNeXt, grouped convolutions", senet, image(3, 16)),
    "perceiver": Port("Flax Perceiver, key and value fused here", perceiver, numbers(4, 11, 9)),
}
