"""A recipe as data: frozen blocks, YAML, dotted overrides, canonical JSON.

Every block of a recipe derives from `config.Config`. Nothing here reads a file but the recipe.
"""
