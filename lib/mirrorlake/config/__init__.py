"""The configuration: the property file, the flow it describes, connections, policies, start offsets, transforms."""
