"""The config.json that a target's library wants beside the weights, of the template in a converter.

    [config]
    model_type = "llama"                                    # as it stands, or:
    hidden_size = { of = "model.norm.weight" }              # the length of a target's axis; `axis = 1`: another
    tie_word_embeddings = { lacks = "lm_head.weight" }      # whether no target is called so
    rms_norm_eps = { setting = ["norm_eps", "eps"] }        # of the source's settings, or else `default`
    sliding_window = { if = "window", then = 3, else = 4 }  # a setting that is true (`is = 2`: 2), or a target

Without `else` the value is null. If one value is not known, there is no config.json, and a note says what is lacking.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..checkpoint import Tensor

if TYPE_CHECKING:
    from .sizes import Sizes

KINDS = ("of", "lacks", "setting", "if")  # keys, one of which makes a table a value that follows from the model


def filled(value: Any, sizes: Sizes, targets: Mapping[str, Tensor], lacking: list[str]) -> Any:
    """A template with its values; what is not known is appended to `lacking`."""
    if isinstance(value, list):
        return [filled(v, sizes, targets, lacking) for v in value]
    if not isinstance(value, dict):
        return value
    if not any(kind in value for kind in KINDS):
        return {k: filled(v, sizes, targets, lacking) for k, v in value.items()}
    if key := value["if"]:
        found, wanted = key in targets or sizes.setting(key), value["is"]
        holds = bool(found) if wanted is None else found == wanted
        return filled(value["then" if holds else "else"], sizes, targets, lacking)
    if value["lacks"]:
        return value["lacks"] not in targets
    if name := value["of"]:
        known = next(iter(targets[name].shape[value["axis"] :]), None) if name in targets else None
    else:
        known = next((v for v in map(sizes.setting, value["setting"]) if v is not None), value["default"])
    if known is None:
        lacking.append(name or " or ".join(value["setting"]))
    return known
