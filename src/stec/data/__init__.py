"""Images to learn from: where they come from, and how they reach the device."""

from stec.data.loading import SOURCES, DataSet, load
from stec.data.split import Batch, ResidentSplit, Split, StreamedSplit

__all__ = ["SOURCES", "Batch", "DataSet", "ResidentSplit", "Split", "StreamedSplit", "load"]
