"""Rows for an estimator: from a DataFrame into parquet files, and from there to the ranks as arrays."""
