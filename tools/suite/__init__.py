"""Test tiers and shards: run them, check them against tests/budget.toml, and report which test hangs where."""
