"""Encoders and the small networks that sit on them."""

from stec.networks.encoders import create_encoder, list_encoders
from stec.networks.heads import mlp, projector
from stec.networks.target import Target

__all__ = ["Target", "create_encoder", "list_encoders", "mlp", "projector"]
