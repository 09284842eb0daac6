"""Colours of verdicts, the same in all figures and distinct for every colour vision (Okabe and Ito)."""

from collections.abc import Iterable
from enum import Enum
from typing import TYPE_CHECKING, Any, Self

from reports.analysis.pairing import NOT_MEASURABLE, Delta
from reports.figures.drawing import GREY_INK, INK

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Tone(Enum):
    """A verdict with its colour."""

    BETTER = "claimed better", "#0072B2"
    WORSE = "claimed worse", "#D55E00"
    EQUIVALENT = "claimed equivalent", "#009E73"
    NOTHING = "nothing claimed", INK
    BARRED = NOT_MEASURABLE, "#767676"

    @property
    def words(self) -> str:
        return self.value[0]

    @property
    def colour(self) -> str:
        return self.value[1]

    @classmethod
    def of(cls, is_better: bool | None, is_equivalent: bool) -> Self:
        """Return the tone of what is claimed: a direction first, None for none."""
        if is_better is not None:
            return cls.BETTER if is_better else cls.WORSE
        return cls.EQUIVALENT if is_equivalent else cls.NOTHING


def tone_of(delta: Delta) -> Tone:
    """Return the tone of a compared difference."""
    return Tone.BARRED if delta.no_verdict else Tone.of(delta.is_better, delta.claimed[1])


def draw_tones(figure: "Figure", tones: Iterable[Tone], top: float, band: str = "") -> None:
    """Draw the legend of some tones at a height of the figure, and of the margin's band if it has a colour."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    shown, claimed = sorted(tones, key=list(Tone).index), (Tone.BETTER, Tone.WORSE, Tone.EQUIVALENT)
    handles: list[Line2D | Patch] = [
        Line2D([], [], ls="", marker="D", ms=3.8, mec=tone.colour, mfc=tone.colour if tone in claimed else "white")
        for tone in shown
    ]
    labels = [tone.words for tone in shown]
    if band:
        handles.append(Patch(fc=band, ec="none"))
        labels.append("margin of equivalence")
    look: dict[str, Any] = {
        "frameon": False,
        "fontsize": 6,
        "labelcolor": GREY_INK,
        "handletextpad": 0.3,
        "columnspacing": 1.2,
    }
    look |= {"ncols": len(labels), "handlelength": 1.2, "borderpad": 0.2}
    figure.legend(handles, labels, loc="lower left", bbox_to_anchor=(0.002, top), **look)
