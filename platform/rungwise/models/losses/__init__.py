"""Objectives as values, and the cross entropies that they sum.

`objectives.py` defines the interface; contrastive and denoising objectives are files of their own.
"""
