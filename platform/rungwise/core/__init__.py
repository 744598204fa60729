"""Configuration, storage, artifacts, stages and tracking: the base of every other package.

Loose files are what all four folders use: errors, exit codes, random numbers, words for counts.
"""
