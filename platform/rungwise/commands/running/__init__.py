"""Commands on recipes: look at data, write a recipe, plan, run, open the page."""
