"""The bytes of record batches: headers, records and their compression, without a connection."""
