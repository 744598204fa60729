"""The pretrain stage, one file for each way of fitting."""
