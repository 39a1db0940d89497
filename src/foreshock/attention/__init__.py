"""Attention logits during training, from what attention computes anyway."""
