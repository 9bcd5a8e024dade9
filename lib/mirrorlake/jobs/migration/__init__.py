"""Taking a flow over from MirrorMaker 2 and giving it back: a map from the contents of both logs."""
