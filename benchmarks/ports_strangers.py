"""Ports that were written after the matching, as a stranger would: they are there to check it."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from ports_common import Arrays, Port, State, dense, image, kernel, norm
from torch import Tensor, nn
from torch.nn.functional import relu, silu


def joined(layers: Iterator[Arrays]) -> Arrays:
    return {n: a for layer in layers for n, a in layer.items()}


# --- Keras SqueezeNet: fire modules, branches that are put side by side -----------------------------


class Fire(nn.Module):
    def __init__(self, i: int, s: int, e: int) -> None:
        super().__init__()
        self.e3, self.e1, self.s1 = nn.Conv2d(s, e, 3, padding=1), nn.Conv2d(s, e, 1), nn.Conv2d(i, s, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = relu(self.s1(x))
        return torch.cat([relu(self.e1(x)), relu(self.e3(x))], 1)


class Squeeze(nn.Module):
    """The classifier is defined first, and the fires from the last to the first."""

    def __init__(self) -> None:
        super().__init__()
        self.logits = nn.Conv2d(48, 10, 1)
        self.d, self.c, self.b, self.a = Fire(48, 8, 24), Fire(32, 8, 24), Fire(32, 8, 16), Fire(16, 8, 16)
        self.first = nn.Conv2d(3, 16, 3, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        x = relu(self.first(x))
        for fire in (self.a, self.b, self.c, self.d):
            x = fire(x)
        return self.logits(x).mean((2, 3))


def squeeze(s: State) -> Arrays:
    def layers() -> Iterator[Arrays]:
        yield dense(s, "first", "conv1")
        for k, at in enumerate("abcd", 2):
            yield dense(s, f"{at}.s1", f"fire{k}/squeeze1x1")
            yield dense(s, f"{at}.e1", f"fire{k}/expand1x1")
            yield dense(s, f"{at}.e3", f"fire{k}/expand3x3")
        yield dense(s, "logits", "conv10")

    return joined(layers())


# --- Haiku residual tower with value and policy heads -----------------------


class Tower(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.entry = nn.Sequential(nn.Conv2d(4, 24, 3, padding=1, bias=False), nn.BatchNorm2d(24))
        self.tower = nn.ModuleList()
        for _ in range(3):
            pair = [m for _ in range(2) for m in (nn.Conv2d(24, 24, 3, padding=1, bias=False), nn.BatchNorm2d(24))]
            self.tower.append(nn.Sequential(*pair))
        self.value = nn.ModuleDict({"conv": nn.Conv2d(24, 1, 1), "hidden": nn.Linear(64, 32), "out": nn.Linear(32, 1)})
        self.policy = nn.ModuleDict({"conv": nn.Conv2d(24, 2, 1), "out": nn.Linear(128, 65)})

    def forward(self, x: Tensor) -> Tensor:
        x = relu(self.entry(x))
        for block in self.tower:
            conv1, bn1, conv2, bn2 = block
            x = relu(x + bn2(conv2(relu(bn1(conv1(x))))))
        p = self.policy["out"](relu(self.policy["conv"](x)).flatten(1))
        v = self.value["out"](relu(self.value["hidden"](relu(self.value["conv"](x)).flatten(1))))
        return torch.cat([p, torch.tanh(v)], 1)


def tower(s: State) -> Arrays:
    def flat(at: str, c: int, name: str) -> Arrays:
        w = s[f"{at}.weight"]
        turned = w.reshape(len(w), c, 8, 8).transpose(0, 2, 3, 1).reshape(len(w), -1)
        return {f"{name}/w": turned.T, f"{name}/b": s[f"{at}.bias"]}

    def conv(at: str, name: str) -> Arrays:
        bias = {f"{name}/b": s[f"{at}.bias"]} if f"{at}.bias" in s else {}
        return {f"{name}/w": kernel(s[f"{at}.weight"])} | bias

    def bn(at: str, name: str) -> Arrays:
        return {
            f"{name}/scale": s[f"{at}.weight"], f"{name}/offset": s[f"{at}.bias"],
            f"{name}/~/mean_ema/average": s[f"{at}.running_mean"], f"{name}/~/var_ema/average": s[f"{at}.running_var"],
        }  # fmt: skip

    def layers() -> Iterator[Arrays]:
        yield conv("entry.0", "az_net/~/conv2_d")
        yield bn("entry.1", "az_net/~/batch_norm")
        for k in range(3):
            home = f"az_net/~/block_{k}"
            yield conv(f"tower.{k}.0", f"{home}/~/conv2_d")
            yield bn(f"tower.{k}.1", f"{home}/~/batch_norm")
            yield conv(f"tower.{k}.2", f"{home}/~/conv2_d_1")
            yield bn(f"tower.{k}.3", f"{home}/~/batch_norm_1")
        yield conv("policy.conv", "az_net/~/policy_conv")
        yield flat("policy.out", 2, "az_net/~/policy_linear")
        yield conv("value.conv", "az_net/~/value_conv")
        yield flat("value.hidden", 1, "az_net/~/value_linear")
        yield {"az_net/~/value_linear_1/w": s["value.out.weight"].T, "az_net/~/value_linear_1/b": s["value.out.bias"]}

    return joined(layers())


# --- Keras diffusion U-Net: time embedding, group norms -------------------------


class Res(nn.Module):
    def __init__(self, i: int, o: int) -> None:
        super().__init__()
        self.in_norm, self.in_conv = nn.GroupNorm(4, i), nn.Conv2d(i, o, 3, padding=1)
        self.emb = nn.Linear(16, o)
        self.out_norm, self.out_conv = nn.GroupNorm(4, o), nn.Conv2d(o, o, 3, padding=1)
        self.skip = nn.Conv2d(i, o, 1) if i != o else nn.Identity()

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        h = self.in_conv(silu(self.in_norm(x))) + self.emb(silu(t))[:, :, None, None]
        return self.out_conv(silu(self.out_norm(h))) + self.skip(x)


class Diffusion(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 16))
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.down1, self.down2, self.middle = Res(8, 8), Res(8, 16), Res(16, 16)
        self.up2, self.up1 = Res(32, 8), Res(16, 8)
        self.final_norm, self.final = nn.GroupNorm(4, 8), nn.Conv2d(8, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        t = self.time(x.flatten(1)[:, :8])
        a = self.down1(self.stem(x), t)
        b = self.down2(a, t)
        h = self.middle(b, t)
        h = self.up2(torch.cat([h, b], 1), t)
        h = self.up1(torch.cat([h, a], 1), t)
        return self.final(silu(self.final_norm(h)))


def diffusion(s: State) -> Arrays:
    count = dict.fromkeys(("conv2d", "dense", "group_normalization"), -1)

    def named(kind: str) -> str:
        count[kind] += 1
        return f"{kind}_{count[kind]}" if count[kind] else kind

    def block(at: str) -> Iterator[Arrays]:
        if f"{at}.skip.weight" in s:  # the residual is made first
            yield dense(s, f"{at}.skip", named("conv2d"))
        yield dense(s, f"{at}.emb", named("dense"))
        yield norm(s, f"{at}.in_norm", named("group_normalization"))
        yield dense(s, f"{at}.in_conv", named("conv2d"))
        yield norm(s, f"{at}.out_norm", named("group_normalization"))
        yield dense(s, f"{at}.out_conv", named("conv2d"))

    def layers() -> Iterator[Arrays]:
        yield dense(s, "stem", named("conv2d"))
        yield dense(s, "time.0", named("dense"))
        yield dense(s, "time.2", named("dense"))
        for at in ("down1", "down2", "middle", "up2", "up1"):
            yield from block(at)
        yield norm(s, "final_norm", named("group_normalization"))
        yield dense(s, "final", named("conv2d"))

    return joined(layers())


PORTS = {
    "squeeze": Port("Keras SqueezeNet, defined backwards", Squeeze, squeeze, image(3, 32)),
    "tower": Port("Haiku residual tower with two heads", Tower, tower, image(4, 8)),
    "diffusion": Port("Keras diffusion U-Net, layers only counted", Diffusion, diffusion, image(3, 8)),
}
