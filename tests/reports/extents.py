"""Extents of the texts of a figure."""

from itertools import combinations

from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox


def require_texts_fit(figure: Figure) -> list[Text]:
    """Every text lies within the figure and beside all others, but for a pixel or two; the texts."""
    figure.draw_without_rendering()
    beyond = {  # matplotlib keeps the labels of ticks that lie beyond an axis
        tick.label1
        for axes in figure.axes
        for axis, (low, high) in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim()))
        for tick in axis.get_major_ticks()
        if not min(low, high) <= tick.get_loc() <= max(low, high)
    }
    texts = [text for text in figure.findobj(Text) if text.get_text() and text.get_visible() and text not in beyond]
    boxes = {text: text.get_window_extent().padded(-2) for text in texts}
    for first, second in combinations(texts, 2):
        assert not Bbox.intersection(boxes[first], boxes[second]), (first, second)
    whole = figure.bbox
    for text, box in boxes.items():
        assert whole.x0 <= box.x0 and box.x1 <= whole.x1 and whole.y0 <= box.y0 and box.y1 <= whole.y1, text
    return texts
