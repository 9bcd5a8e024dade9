"""The protocol of the mirror job as a state machine, explored exhaustively; docs/protocol.md describes it."""
