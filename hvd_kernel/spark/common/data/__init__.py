"""Rows for an estimator: written from a DataFrame to parquet files, and read by the ranks as arrays."""
