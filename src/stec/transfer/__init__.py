"""Encoders put to other uses: classification, object detection, semantic segmentation."""
