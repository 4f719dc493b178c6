"""Datasets with a reproducible order that can start in the middle of an epoch and be sharded among workers."""
