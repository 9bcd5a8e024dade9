"""The Delta tables: their columns, writing and reading them, views in SQL, expiry, maintenance, the audit."""
