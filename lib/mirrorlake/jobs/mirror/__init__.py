"""The mirror job: planner, engines, copying tasks, gate, commit and topic sync."""
