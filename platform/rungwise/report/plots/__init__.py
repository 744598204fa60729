"""Plots of a page: functions from summaries to a PNG, with the look of report/style.py.

They draw what sections/ worked out and compute nothing new.
"""
