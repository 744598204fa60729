"""The blocks and the body that families share."""
