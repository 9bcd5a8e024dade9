"""The mirror job: plans, the tasks that copy, the gate, the commit, and topics kept in step."""
