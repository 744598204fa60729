"""Forecasts of what a rung will be worth with more compute or more text, and of its price.

Points (`points.py`) are measurements of a rung at shares of its recipe's budget. Laws (`laws.py`)
turn them into curves, intervals (`intervals.py`) into draws of curves. Backtests, crossings and
advice read those draws. Nothing here trains or reads an artifact.
"""
