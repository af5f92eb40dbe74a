"""How good are frozen features? Offline linear classification and nearest neighbours."""

from stec.evaluation.knn import knn_accuracy
from stec.evaluation.linear import LinearResult, fit_linear

__all__ = ["LinearResult", "fit_linear", "knn_accuracy"]
