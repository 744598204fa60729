"""Objectives as values, and the cross entropies that they sum."""
