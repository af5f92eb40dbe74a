"""Learning from sound: contrastive predictive coding, with efference copies."""

from stec.audio.network import Network, load

__all__ = ["Network", "load"]
