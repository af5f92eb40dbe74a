"""Encoders put to other uses: object detection and semantic segmentation, trained from a pretrained encoder."""
