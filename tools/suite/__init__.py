"""Test tiers and shards: runs them, holds them to tests/budget.toml, and says which test hangs where."""
